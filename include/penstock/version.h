#pragma once

#include <string_view>

#include "penstock/export.h"

namespace PENSTOCK_EXPORT penstock {

// "0.2.0"
std::string_view version() noexcept;

}  // namespace penstock
