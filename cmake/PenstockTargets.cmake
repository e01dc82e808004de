# How targets are made here: one object library per layer of src/, whose DEPENDS are the only layers it may include.

add_library(penstock_flags INTERFACE)
target_compile_options(penstock_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
                                               -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Known false alarms of GCC 12 in inlined std::string code.
  target_compile_options(penstock_flags INTERFACE -Wno-restrict)
  if(PENSTOCK_UNITY_BUILD)
    # It is about headers, and takes sources that are compiled together for such.
    target_compile_options(penstock_flags INTERFACE -Wno-subobject-linkage)
  endif()
endif()
if(PENSTOCK_WARNINGS_AS_ERRORS)
  target_compile_options(penstock_flags INTERFACE -Werror)
endif()
if(PENSTOCK_SANITIZE)
  target_compile_options(penstock_flags INTERFACE -fsanitize=${PENSTOCK_SANITIZE} -fno-omit-frame-pointer
                                                  -fno-sanitize-recover=all)
  target_link_options(penstock_flags INTERFACE -fsanitize=${PENSTOCK_SANITIZE})
  # clang looks at an object through a pipe, and takes a process that has no descriptors left for a broken object.
  if(PENSTOCK_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(penstock_flags INTERFACE -fno-sanitize=vptr)
  endif()
  # GCC's way to tell which sanitizer it is, that clang 14 lacks.
  if(PENSTOCK_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_definitions(penstock_flags INTERFACE __SANITIZE_THREAD__=1)
  endif()
endif()

# penstock_hardened(TARGET): what is shipped, not the tests. No -fstack-protector-all: the copies in inner loops have no
# buffers of their own to guard. FORTIFY_SOURCE wants optimised code, and sanitizers want to see the plain calls.
function(penstock_hardened target)
  if(PENSTOCK_SANITIZE)
    return()
  endif()
  target_compile_options(${target} PRIVATE -fstack-protector-strong -fstack-clash-protection)
  target_compile_options(${target} PRIVATE "$<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
  get_target_property(type ${target} TYPE)
  if(NOT type STREQUAL "OBJECT_LIBRARY")
    target_link_options(${target} PRIVATE -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
  endif()
endfunction()

# penstock_find_package(NAME PACKAGE FOR): what an option, and not the library, needs; FOR is that option.
macro(penstock_find_package name package for)
  find_package(${name} QUIET)
  if(NOT ${name}_FOUND)
    message(FATAL_ERROR "${for} needs ${name}: not found. Set it to OFF or, on Debian and Ubuntu:\n  apt install ${package}")
  endif()
endmacro()

# penstock_compile_together(TARGET): its sources are compiled a few at a time, because most of the time goes to headers that
# all of them include. So a name in an anonymous namespace is used once in a layer. A few, not all: a change compiles
# its neighbours again.
function(penstock_compile_together target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${PENSTOCK_UNITY_BUILD} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

# penstock_test_program(TARGET): how test sources are compiled. Optimising them takes longer than it saves when they run.
function(penstock_test_program target)
  target_compile_options(${target} PRIVATE -O0)
endfunction()

# penstock_layer(NAME DEPENDS layer... LIBRARIES target...): every .cc under src/NAME but the tests.
function(penstock_layer name)
  cmake_parse_arguments(LAYER "" "" "DEPENDS;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${name}/*.cc")
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  add_library(penstock_${name} OBJECT ${sources})
  penstock_compile_together(penstock_${name})
  set_target_properties(penstock_${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_include_directories(penstock_${name} PUBLIC "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(penstock_${name} PRIVATE penstock_flags PUBLIC fmt::fmt ${LAYER_LIBRARIES})
  penstock_hardened(penstock_${name})
  foreach(dependency IN LISTS LAYER_DEPENDS)
    target_link_libraries(penstock_${name} PUBLIC penstock_${dependency})
  endforeach()
endfunction()

# penstock_layer_tests(NAME): every *_test.cc under src/NAME, as one program.
function(penstock_layer_tests name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${name}/*_test.cc")
  if(NOT sources)
    return()
  endif()
  add_executable(penstock_${name}_test ${sources})
  target_include_directories(penstock_${name}_test PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_compile_definitions(penstock_${name}_test PRIVATE PENSTOCK_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  target_link_libraries(penstock_${name}_test PRIVATE penstock penstock_testing penstock_flags simdjson::simdjson
                                                      PkgConfig::libisal PkgConfig::liburing fmt::fmt
                                                      GTest::gmock GTest::gtest_main)
  penstock_test_program(penstock_${name}_test)
  # The programs differ in their sources only, so the first one's precompiled header serves all.
  if(name STREQUAL "base")
    target_precompile_headers(penstock_base_test PRIVATE "${PROJECT_SOURCE_DIR}/src/testing/precompiled.h")
  else()
    target_precompile_headers(penstock_${name}_test REUSE_FROM penstock_base_test)
  endif()
  gtest_discover_tests(penstock_${name}_test TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
endfunction()

# penstock_for_wheel(TARGET): a program or module of a Python wheel, which meets other versions of the C++ library.
function(penstock_for_wheel target)
  target_sources(${target} PRIVATE "${PROJECT_SOURCE_DIR}/python/bindings/older_libstdcxx.cc")
  target_link_options(${target} PRIVATE -Wl,--wrap=_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE)
endfunction()
