#include "device/cuda_api.h"

#include <fmt/format.h>
#include <link.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "base/fork.h"
#include "device/dynamic_library.h"

namespace penstock::cuda {
namespace {

DynamicLibrary driver_library() {
  return {"PENSTOCK_LIBCUDA", "libcuda.so.1"};
}

Library open_driver() {
  auto api = std::make_unique<Api>();  // kept for ever once it is whole
  Library result;
  DynamicLibrary library = driver_library();
  if (!library.open(result.why_not)) return result;
#define PENSTOCK_FIND(member, symbol, parameters) \
  if (!library.find(#symbol, api->member, result.why_not)) return result;
  PENSTOCK_CUDA_SYMBOLS(PENSTOCK_FIND)
#undef PENSTOCK_FIND
  int version = 0;
  if (const Result status = api->driver_version(&version); status != kSuccess) {
    result.why_not = fmt::format("{}: cuDriverGetVersion failed: {}", library.name(), describe(*api, status));
  } else if (version < kOldestDriver) {
    result.why_not = fmt::format("{} is a driver for CUDA {}.{}, and 12.0 or newer is needed", library.name(),
                                 version / 1000, version % 1000 / 10);
  } else {
    result.api = api.release();
    result.version = version;
  }
  return result;
}

auto& opened_library = *new MadeOnce<Library>();  // as long as there may be memory of devices

// How many libraries this process has loaded so far, those that are gone again included.
unsigned long long count_loaded() {
  unsigned long long count = 0;
  const auto look = [](dl_phdr_info* info, std::size_t, void* found) {
    *static_cast<unsigned long long*>(found) = info->dlpi_adds;
    return 1;  // every entry says the same
  };
  const std::lock_guard lock(process_mutex());  // the loader has a lock here which children of fork() do not find free
  ::dl_iterate_phdr(look, &count);
  return count;
}

}  // namespace

const Library& open_library() {
  return opened_library.get(open_driver);
}

const Api* loaded_library() {
  // Once there it stays; until then it may come with any library. Looking takes 50 us: the loader searches its folders.
  static std::atomic<bool> is_there{false};
  static std::atomic<unsigned long long> missing_at{0};
  if (!is_there.load(std::memory_order_relaxed)) {
    const unsigned long long now = count_loaded();
    if (missing_at.load(std::memory_order_relaxed) == now) return nullptr;
    if (!driver_library().is_loaded()) {
      missing_at.store(now, std::memory_order_relaxed);
      return nullptr;
    }
    is_there.store(true, std::memory_order_relaxed);
  }
  return open_library().api;
}

std::string describe(const Api& api, Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (api.error_name(result, &name) != kSuccess || name == nullptr) return fmt::format("CUDA error {}", result);
  if (api.error_string(result, &text) != kSuccess || text == nullptr) return name;
  return fmt::format("{}: {}", name, text);
}

}  // namespace penstock::cuda
