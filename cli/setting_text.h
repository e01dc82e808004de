// A Setting in words: for a table, for the shell, for C++ and for Python.
#pragma once

#include <string>

#include "sweep.h"

namespace penstock::cli {

// "uring     2 MiB x 8", "default".
std::string format_setting(const Setting& setting);

// "PENSTOCK_BACKEND=uring PENSTOCK_BLOCK_SIZE=2M PENSTOCK_QUEUE_DEPTH=8". There is no variable for the write method.
std::string environment_for(const Setting& setting);

// "options.io = {.backend = Backend::kUring, .block_size = 2 << 20, .queue_depth = 8};"
std::string cpp_for(const Setting& setting);

// "backend="uring", block_size="2MiB", queue_depth=8": arguments of load and save.
std::string python_for(const Setting& setting);

}  // namespace penstock::cli
