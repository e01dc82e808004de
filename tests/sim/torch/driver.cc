#include "driver.h"

#include <array>
#include <atomic>
#include <mutex>

namespace sim_torch {
namespace {

constexpr int kMemoryType = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr int kOrdinal = 9;     // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr unsigned kHost = 1;
constexpr unsigned kDevice = 2;

std::array<std::atomic<Handle>, kMostDevices> contexts;

Handle context_of(int device) {
  TORCH_CHECK(device >= 0 && device < device_count(), "there is no device sim:", device, ": there are ",
              device_count());
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::atomic<Handle>& context = contexts[static_cast<std::size_t>(device)];
  if (context == nullptr) {
    Handle made = nullptr;
    SIM_CHECK(cuDevicePrimaryCtxRetain(&made, device));
    context = made;  // kept, as torch keeps CUDA's
  }
  return context;
}

unsigned type_of(const void* address) noexcept {
  unsigned type = 0;
  const auto number = reinterpret_cast<CUdeviceptr>(address);
  return device_count() > 0 && cuPointerGetAttribute(&type, kMemoryType, number) == 0 ? type : 0;
}

}  // namespace

int device_count() noexcept {
  static const CUresult started = cuInit(0);
  int count = 0;
  return started == 0 && cuDeviceGetCount(&count) == 0 ? count : 0;
}

int device_of(const void* address) noexcept {
  int device = -1;
  if (type_of(address) != kDevice) return device;
  return cuPointerGetAttribute(&device, kOrdinal, reinterpret_cast<CUdeviceptr>(address)) == 0 ? device : -1;
}

bool is_pinned(const void* address) noexcept {
  return type_of(address) == kHost;
}

bool has_context(int device) noexcept {
  return contexts[static_cast<std::size_t>(device)] != nullptr;
}

Context::Context(int device) {
  SIM_CHECK(cuCtxPushCurrent_v2(context_of(device)));
}

Context::~Context() {
  Handle popped = nullptr;
  cuCtxPopCurrent_v2(&popped);
}

int& current_device() noexcept {
  static thread_local int device = 0;
  return device;
}

Handle& current_stream(int device) noexcept {
  static thread_local std::array<Handle, kMostDevices> streams{};
  return streams[static_cast<std::size_t>(device)];
}

void synchronize_all() {
  for (int device = 0; device < kMostDevices; ++device) {
    if (!has_context(device)) continue;
    const Context context(device);
    cuCtxSynchronize();  // a lost device has nothing to wait for
  }
}

}  // namespace sim_torch
