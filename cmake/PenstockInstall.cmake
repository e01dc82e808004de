# What `cmake --install` puts down for C++: the library, its headers, and how CMake and pkg-config find them.
include(CMakePackageConfigHelpers)
set(penstock_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/penstock")

install(TARGETS penstock EXPORT penstockTargets)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/penstock" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT penstockTargets NAMESPACE penstock:: DESTINATION ${penstock_cmake_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/penstockConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
configure_file("${PROJECT_SOURCE_DIR}/cmake/penstockConfig.cmake.in" "${PROJECT_BINARY_DIR}/penstockConfig.cmake" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/penstockConfig.cmake" "${PROJECT_BINARY_DIR}/penstockConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/PenstockDependencies.cmake"
        DESTINATION ${penstock_cmake_dir})

# The prefix is counted from the .pc file: what is installed may be moved. A static library names what must be linked
# with it (`pkg-config --static`); a shared one brings that itself, and asks for no development packages.
file(RELATIVE_PATH PENSTOCK_PREFIX_FROM_PC "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
string(REGEX REPLACE "/$" "" PENSTOCK_PREFIX_FROM_PC "${PENSTOCK_PREFIX_FROM_PC}")
set(PENSTOCK_PC_PRIVATE "")
if(NOT BUILD_SHARED_LIBS)
  string(CONCAT PENSTOCK_PC_PRIVATE "Requires.private: fmt simdjson liburing >= 2.3 libisal\n"
                                    "Libs.private: -pthread\n")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/penstock.pc.in" "${PROJECT_BINARY_DIR}/penstock.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/penstock.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
