#include "penstock/version.h"

namespace penstock {

std::string_view version() noexcept {
  return PENSTOCK_VERSION;
}

}  // namespace penstock
