// libcuda.so.1: primary contexts, and which is current on a thread.
#include "calls.h"
#include "state.h"

using sim::Context;
using sim::Handle;
using sim::Result;

namespace {

// With the state locked; null when there is no such device.
sim::Device* find_device(int device) {
  sim::State& all = sim::state();
  return device >= 0 && static_cast<std::uint64_t>(device) < all.settings.devices ? &all.devices[device] : nullptr;
}

Result make_context(sim::Device& device) {
  const std::size_t nbytes = std::max<std::size_t>(sim::state().settings.memory, std::size_t{4} << 30);
  if (!device.memory.mapped() && !device.memory.map(nbytes)) {
    return sim::kOutOfMemory;
  }
  Context& context = device.context;
  if (context.null_stream == nullptr) {
    context.null_stream = sim::start_stream(context, true, nullptr);
  }
  ++sim::state().counters.contexts_made[context.device];
  return sim::kSuccess;
}

// What a context holds that is being released for the last time is gone with it.
void check_for_leftovers(const char* symbol, const Context& context) {
  std::size_t streams = 0;
  std::size_t allocations = 0;
  for (const auto& [handle, stream] : sim::state().streams) {
    streams += stream->context == &context ? 1 : 0;
  }
  for (const auto& [start, memory] : sim::state().memory) {
    allocations += memory->kind == sim::Kind::kDevice && memory->device == context.device ? 1 : 0;
  }
  if (streams + allocations > 0) {
    sim::violation(symbol, sim::text("the context of device ", context.device, " ends with ", streams, " streams and ",
                                     allocations, " allocations in it"));
  }
}

}  // namespace

extern "C" {

SIM_EXPORT Result cuDevicePrimaryCtxRetain(Handle* handle, int number) {
  SIM_ENTER(cuDevicePrimaryCtxRetain);
  const std::lock_guard lock(sim::state().mutex);
  sim::Device* const device = find_device(number);
  if (device == nullptr) {
    return sim::kInvalidDevice;
  }
  Context& context = device->context;
  if (context.retained == 0) {
    const Result result = make_context(*device);
    if (result != sim::kSuccess) {
      return result;
    }
  }
  ++context.retained;
  *handle = context.handle();
  return sim::kSuccess;
}

SIM_EXPORT Result cuDevicePrimaryCtxRelease_v2(int number) {
  SIM_ENTER(cuDevicePrimaryCtxRelease_v2);
  const std::lock_guard lock(sim::state().mutex);
  sim::Device* const device = find_device(number);
  if (device == nullptr) {
    return sim::kInvalidDevice;
  }
  Context& context = device->context;
  if (context.retained == 0) {
    sim::violation(here.name, sim::text("the context of device ", number, " is released more often than retained"));
    return sim::kInvalidContext;
  }
  if (--context.retained == 0) {
    check_for_leftovers(here.name, context);
    context.lost = sim::kSuccess;
  }
  return sim::kSuccess;
}

SIM_EXPORT Result cuDevicePrimaryCtxGetState(int number, unsigned* flags, int* active) {
  SIM_ENTER(cuDevicePrimaryCtxGetState);
  const std::lock_guard lock(sim::state().mutex);
  const sim::Device* const device = find_device(number);
  if (device == nullptr) {
    return sim::kInvalidDevice;
  }
  *flags = 0;
  *active = device->context.retained > 0 ? 1 : 0;
  return sim::kSuccess;
}

SIM_EXPORT Result cuCtxPushCurrent_v2(Handle handle) {
  SIM_ENTER(cuCtxPushCurrent_v2);
  const std::lock_guard lock(sim::state().mutex);
  if (sim::find_context(handle) == nullptr) {
    return sim::kInvalidContext;
  }
  sim::context_stack().push_back(handle);
  return sim::kSuccess;
}

SIM_EXPORT Result cuCtxPopCurrent_v2(Handle* handle) {
  SIM_ENTER(cuCtxPopCurrent_v2);
  std::vector<Handle>& stack = sim::context_stack();
  if (stack.empty()) {
    const std::lock_guard lock(sim::state().mutex);
    sim::violation(here.name, "no context is current on this thread");
    return sim::kInvalidContext;
  }
  if (handle != nullptr) {
    *handle = stack.back();
  }
  stack.pop_back();
  return sim::kSuccess;
}

SIM_EXPORT Result cuCtxGetCurrent(Handle* handle) {
  SIM_ENTER(cuCtxGetCurrent);
  const std::vector<Handle>& stack = sim::context_stack();
  *handle = stack.empty() ? nullptr : stack.back();
  return sim::kSuccess;
}

SIM_EXPORT Result cuCtxSetCurrent(Handle handle) {
  SIM_ENTER(cuCtxSetCurrent);
  const std::lock_guard lock(sim::state().mutex);
  if (handle != nullptr && sim::find_context(handle) == nullptr) {
    return sim::kInvalidContext;
  }
  std::vector<Handle>& stack = sim::context_stack();
  if (!stack.empty()) {
    stack.pop_back();
  }
  if (handle != nullptr) {
    stack.push_back(handle);
  }
  return sim::kSuccess;
}

SIM_EXPORT Result cuCtxGetDevice(int* device) {
  SIM_ENTER(cuCtxGetDevice);
  const std::lock_guard lock(sim::state().mutex);
  const Context* const context = sim::find_current();
  if (context == nullptr) {
    return sim::kInvalidContext;
  }
  *device = context->device;
  return sim::kSuccess;
}

SIM_EXPORT Result cuCtxSynchronize() {
  SIM_ENTER(cuCtxSynchronize);
  std::unique_lock lock(sim::state().mutex);
  Context* context = nullptr;
  const Result result = sim::current_context(here.name, context);
  if (result != sim::kSuccess) {
    return result;
  }
  sim::wait_for_context(lock, *context);
  return context->lost;
}

}  // extern "C"
