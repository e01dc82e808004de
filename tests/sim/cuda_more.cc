// libcuda.so.1: functions that penstock has no use for. NVIDIA's libcufile does not start without them.
#include <cstring>

#include "calls.h"
#include "copies.h"
#include "state.h"

using sim::Address;
using sim::Handle;
using sim::Result;

extern "C" {
// Elsewhere in this library.
Result cuDevicePrimaryCtxRetain(Handle* handle, int number);
Result cuDevicePrimaryCtxRelease_v2(int number);
Result cuCtxPushCurrent_v2(Handle handle);
Result cuMemHostAlloc(void** data, std::size_t nbytes, unsigned flags);
}

namespace {

inline constexpr Result kNotSupported = 801;

// The direction is found by asking whose the addresses are, as the driver does.
Result copy_any(const sim::Symbol& symbol, const sim::Entry& entry, Address to, Address from, std::size_t nbytes,
                Handle stream, bool wait) {
  const auto on_host = [](Address address) {
    const std::lock_guard lock(sim::state().mutex);
    const sim::SharedMemory memory = sim::find_memory(address);
    return memory == nullptr || memory->of_host();
  };
  sim::Direction direction = sim::Direction::kWithinDevice;
  if (on_host(from)) {
    direction = sim::Direction::kToDevice;
  } else if (on_host(to)) {
    direction = sim::Direction::kToHost;
  }
  return sim::copy({.symbol = symbol.name,
                    .direction = direction,
                    .to = to,
                    .from = from,
                    .nbytes = nbytes,
                    .stream = stream,
                    .failure = entry.later,
                    .wait = wait});
}

}  // namespace

// What devices that can't reach each other and have no kernel driver behind them answer.
#define SIM_NOT_SUPPORTED(symbol) \
  SIM_EXPORT Result symbol() {    \
    SIM_ENTER(symbol);            \
    return kNotSupported;         \
  }

extern "C" {

SIM_NOT_SUPPORTED(cuCtxEnablePeerAccess)
SIM_NOT_SUPPORTED(cuGetExportTable)
SIM_NOT_SUPPORTED(cuIpcCloseMemHandle)
SIM_NOT_SUPPORTED(cuIpcGetEventHandle)
SIM_NOT_SUPPORTED(cuIpcGetMemHandle)
SIM_NOT_SUPPORTED(cuIpcOpenEventHandle)
SIM_NOT_SUPPORTED(cuIpcOpenMemHandle_v2)
SIM_NOT_SUPPORTED(cuMemcpyPeer)
SIM_NOT_SUPPORTED(cuMemcpyPeerAsync)
SIM_NOT_SUPPORTED(cuStreamWaitValue32)
SIM_NOT_SUPPORTED(cuStreamWaitValue32_v2)
SIM_NOT_SUPPORTED(cuStreamWriteValue32)
SIM_NOT_SUPPORTED(cuStreamWriteValue32_v2)
SIM_NOT_SUPPORTED(cuEventElapsedTime)

// A device has one context here: who makes another gets that one.
SIM_EXPORT Result cuCtxCreate_v2(Handle* handle, unsigned, int device) {
  SIM_ENTER(cuCtxCreate_v2);
  const Result result = cuDevicePrimaryCtxRetain(handle, device);
  return result == sim::kSuccess ? cuCtxPushCurrent_v2(*handle) : result;
}

SIM_EXPORT Result cuCtxDestroy_v2(Handle handle) {
  SIM_ENTER(cuCtxDestroy_v2);
  int device = 0;
  {
    const std::lock_guard lock(sim::state().mutex);
    const sim::Context* const context = sim::find_context(handle);
    if (context == nullptr) {
      return sim::kInvalidContext;
    }
    device = context->device;
    std::vector<Handle>& stack = sim::context_stack();
    if (!stack.empty() && stack.back() == handle) {
      stack.pop_back();
    }
  }
  return cuDevicePrimaryCtxRelease_v2(device);
}

SIM_EXPORT Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  SIM_ENTER(cuCtxGetStreamPriorityRange);
  *least = 0;
  *greatest = 0;
  return sim::kSuccess;
}

SIM_EXPORT Result cuDeviceCanAccessPeer(int* can, int, int) {
  SIM_ENTER(cuDeviceCanAccessPeer);
  *can = 0;
  return sim::kSuccess;
}

SIM_EXPORT Result cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  SIM_ENTER(cuDeviceGetUuid_v2);
  std::memset(uuid, 0, 16);
  uuid[15] = static_cast<unsigned char>(device + 1);
  return sim::kSuccess;
}

SIM_EXPORT Result cuPointerSetAttribute(const void*, int, Address address) {
  SIM_ENTER(cuPointerSetAttribute);
  const std::lock_guard lock(sim::state().mutex);
  return sim::find_memory(address) == nullptr ? sim::kInvalidValue : sim::kSuccess;
}

SIM_EXPORT Result cuMemAllocHost_v2(void** data, std::size_t nbytes) {
  SIM_ENTER(cuMemAllocHost_v2);
  return cuMemHostAlloc(data, nbytes, 0);
}

SIM_EXPORT Result cuMemcpyAsync(Address to, Address from, std::size_t nbytes, Handle stream) {
  SIM_ENTER(cuMemcpyAsync);
  return copy_any(here, entry, to, from, nbytes, stream, false);
}

SIM_EXPORT Result cuMemcpy(Address to, Address from, std::size_t nbytes) {
  SIM_ENTER(cuMemcpy);
  return copy_any(here, entry, to, from, nbytes, nullptr, true);
}

}  // extern "C"
