# How targets are made here: one object library per layer of src/, whose DEPENDS are the only layers it may include.

add_library(penstock_flags INTERFACE)
target_compile_options(penstock_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
                                               -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Known false alarms of GCC 12 in inlined std::string code.
  target_compile_options(penstock_flags INTERFACE -Wno-restrict)
endif()
if(PENSTOCK_WARNINGS_AS_ERRORS)
  target_compile_options(penstock_flags INTERFACE -Werror)
endif()
if(PENSTOCK_SANITIZE)
  target_compile_options(penstock_flags INTERFACE -fsanitize=${PENSTOCK_SANITIZE} -fno-omit-frame-pointer
                                                  -fno-sanitize-recover=all)
  target_link_options(penstock_flags INTERFACE -fsanitize=${PENSTOCK_SANITIZE})
endif()

# penstock_layer(NAME DEPENDS layer... LIBRARIES target...): every .cc under src/NAME but the tests.
function(penstock_layer name)
  cmake_parse_arguments(LAYER "" "" "DEPENDS;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${name}/*.cc")
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  add_library(penstock_${name} OBJECT ${sources})
  target_include_directories(penstock_${name} PUBLIC "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(penstock_${name} PRIVATE penstock_flags PUBLIC fmt::fmt ${LAYER_LIBRARIES})
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
  gtest_discover_tests(penstock_${name}_test TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
endfunction()
