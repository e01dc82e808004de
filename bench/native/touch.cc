// libtouch: what bench/tensors.py does to every page of what was loaded, for checkpoints of very many tensors.
#include <cstddef>
#include <cstdint>

namespace {
constexpr std::uint64_t kPageSize = 4096;
}

// Sum of the first byte of every 4096 of each stretch of memory. The driver calls it through ctypes.
extern "C" std::uint64_t touch_every_page(const std::uint64_t* addresses, const std::uint64_t* sizes,
                                          std::size_t count) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto* bytes = reinterpret_cast<const volatile unsigned char*>(addresses[i]);
    for (std::uint64_t at = 0; at < sizes[i]; at += kPageSize) total += bytes[at];
  }
  return total;
}
