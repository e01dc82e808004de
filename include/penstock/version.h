#pragma once

#include <string_view>

namespace penstock {

// "0.1.0"
std::string_view version() noexcept;

}  // namespace penstock
