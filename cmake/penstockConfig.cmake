# find_package(penstock) gives the target penstock::penstock.
include("${CMAKE_CURRENT_LIST_DIR}/PenstockDependencies.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/penstockTargets.cmake")
