# What penstock stands on. Also installed with the package, so that a static penstock finds the same libraries.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(fmt)
find_dependency(simdjson)
find_dependency(PkgConfig)
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET liburing>=2.3)
pkg_check_modules(libisal REQUIRED IMPORTED_TARGET libisal)
