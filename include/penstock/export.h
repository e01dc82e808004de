// What every public header stands on: the language, and which names a shared library shows.
#pragma once

#if __cplusplus < 202002L
#error "penstock needs C++20: compile with -std=c++20 or later (in CMake, find_package(penstock) asks for it)"
#endif

// The library is compiled with hidden visibility. What the public headers declare is all that can be linked against.
#define PENSTOCK_EXPORT [[gnu::visibility("default")]]
