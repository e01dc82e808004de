# What penstock stands on. Also installed with a static penstock, so that who links it finds the same libraries.
# Leaves in PENSTOCK_MISSING what was not found and how to get it; empty when all is there.
find_package(Threads QUIET)
find_package(fmt QUIET)
find_package(simdjson QUIET)
find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(liburing QUIET IMPORTED_TARGET liburing>=2.3)
  pkg_check_modules(libisal QUIET IMPORTED_TARGET libisal)
endif()

set(penstock_missing_names "")
set(penstock_missing_packages "")
macro(penstock_note_missing found name package)
  if(NOT ${found})
    list(APPEND penstock_missing_names "${name}")
    list(APPEND penstock_missing_packages "${package}")
  endif()
endmacro()
penstock_note_missing(Threads_FOUND "threads" libc6-dev)
penstock_note_missing(fmt_FOUND "fmt" libfmt-dev)
penstock_note_missing(simdjson_FOUND "simdjson" libsimdjson-dev)
penstock_note_missing(PKG_CONFIG_FOUND "pkg-config" pkg-config)
penstock_note_missing(liburing_FOUND "liburing >= 2.3" liburing-dev)
penstock_note_missing(libisal_FOUND "ISA-L" libisal-dev)

set(PENSTOCK_MISSING "")
if(penstock_missing_names)
  list(JOIN penstock_missing_names ", " penstock_missing_names)
  list(JOIN penstock_missing_packages " " penstock_missing_packages)
  # CMake wraps lines but for those that begin with a space: the command stays in one piece.
  set(PENSTOCK_MISSING
      "penstock needs ${penstock_missing_names}: not found. On Debian and Ubuntu:\n  apt install ${penstock_missing_packages}")
endif()
