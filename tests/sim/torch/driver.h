// The simulated driver as the torch backend uses it: declarations of our own, contexts, errors.
#pragma once

#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>

extern "C" {
using CUresult = int;
using CUdeviceptr = unsigned long long;
using Handle = void*;  // CUcontext, CUstream, CUevent

CUresult cuInit(unsigned flags);
CUresult cuDeviceGetCount(int* count);
CUresult cuDevicePrimaryCtxRetain(Handle* context, int device);
CUresult cuCtxPushCurrent_v2(Handle context);
CUresult cuCtxPopCurrent_v2(Handle* context);
CUresult cuCtxSynchronize();
CUresult cuGetErrorString(CUresult result, const char** text);
CUresult cuPointerGetAttribute(void* value, int attribute, CUdeviceptr address);
CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t nbytes);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemHostAlloc(void** address, std::size_t nbytes, unsigned flags);
CUresult cuMemFreeHost(void* address);
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, std::size_t nbytes, Handle stream);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t nbytes, Handle stream);
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t nbytes, Handle stream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t nbytes, Handle stream);
CUresult cuStreamCreate(Handle* stream, unsigned flags);
CUresult cuStreamQuery(Handle stream);
CUresult cuStreamSynchronize(Handle stream);
CUresult cuStreamWaitEvent(Handle stream, Handle event, unsigned flags);
CUresult cuLaunchHostFunc(Handle stream, void (*function)(void*), void* argument);
CUresult cuEventCreate(Handle* event, unsigned flags);
CUresult cuEventDestroy_v2(Handle event);
CUresult cuEventRecord(Handle event, Handle stream);
CUresult cuEventQuery(Handle event);
CUresult cuEventSynchronize(Handle event);
}

namespace sim_torch {

inline constexpr int kMostDevices = 16;
inline constexpr CUresult kOutOfMemory = 2;
inline constexpr CUresult kNotReady = 600;

// As torch words what CUDA answers.
inline void check(CUresult result, const char* call) {
  if (result == 0) return;
  const char* text = "unknown error";
  cuGetErrorString(result, &text);
  TORCH_CHECK(false, "sim error: ", text, " (", call, ")");
}
#define SIM_CHECK(call) ::sim_torch::check((call), #call)

// 0 where the driver does not work.
int device_count() noexcept;

// The device of an address; -1 for what is not a device's.
int device_of(const void* address) noexcept;
bool is_pinned(const void* address) noexcept;

// Whether the device was used.
bool has_context(int device) noexcept;

// Makes the device's context current, for as long as it lives.
class Context {
 public:
  explicit Context(int device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
};

// Of the calling thread. The default stream's handle is null.
int& current_device() noexcept;
Handle& current_stream(int device) noexcept;

// Waits for every device that was used.
void synchronize_all();

}  // namespace sim_torch
