// Errors of those who know no files, told of the file that they were for.
#pragma once

#include <fmt/format.h>

#include <string>

#include "base/error.h"

namespace penstock {

// Runs a step. The message of an Error that it throws begins with the path.
template <typename Step>
auto with_path(const std::string& path, const Step& step) -> decltype(step()) {
  try {
    return step();
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", path, error.what()), error.error_number());
  }
}

}  // namespace penstock
