// The driver's functions (libcuda.so.1), found at run time. One line per symbol.
#pragma once

#include <string>

#include "device/cuda_types.h"

namespace penstock::cuda {

// X(member, symbol, parameters)
#define PENSTOCK_CUDA_SYMBOLS(X)                                                       \
  X(init, cuInit, (unsigned))                                                          \
  X(driver_version, cuDriverGetVersion, (int*))                                        \
  X(error_name, cuGetErrorName, (Result, const char**))                                \
  X(error_string, cuGetErrorString, (Result, const char**))                            \
  X(device_count, cuDeviceGetCount, (int*))                                            \
  X(device_get, cuDeviceGet, (Ordinal*, int))                                          \
  X(device_name, cuDeviceGetName, (char*, int, Ordinal))                               \
  X(device_attribute, cuDeviceGetAttribute, (int*, int, Ordinal))                      \
  X(device_total_memory, cuDeviceTotalMem_v2, (std::size_t*, Ordinal))                 \
  X(device_bus_id, cuDeviceGetPCIBusId, (char*, int, Ordinal))                         \
  X(primary_retain, cuDevicePrimaryCtxRetain, (Context*, Ordinal))                     \
  X(primary_release, cuDevicePrimaryCtxRelease_v2, (Ordinal))                          \
  X(push_context, cuCtxPushCurrent_v2, (Context))                                      \
  X(pop_context, cuCtxPopCurrent_v2, (Context*))                                       \
  X(pointer_attribute, cuPointerGetAttribute, (void*, int, Address))                   \
  X(allocate, cuMemAlloc_v2, (Address*, std::size_t))                                  \
  X(allocate_managed, cuMemAllocManaged, (Address*, std::size_t, unsigned))            \
  X(free, cuMemFree_v2, (Address))                                                     \
  X(memory_info, cuMemGetInfo_v2, (std::size_t*, std::size_t*))                        \
  X(host_allocate, cuMemHostAlloc, (void**, std::size_t, unsigned))                    \
  X(host_free, cuMemFreeHost, (void*))                                                 \
  X(host_register, cuMemHostRegister_v2, (void*, std::size_t, unsigned))               \
  X(host_unregister, cuMemHostUnregister, (void*))                                     \
  X(copy_to_device, cuMemcpyHtoDAsync_v2, (Address, const void*, std::size_t, Stream)) \
  X(copy_to_host, cuMemcpyDtoHAsync_v2, (void*, Address, std::size_t, Stream))         \
  X(copy_within, cuMemcpyDtoDAsync_v2, (Address, Address, std::size_t, Stream))        \
  X(stream_create, cuStreamCreate, (Stream*, unsigned))                                \
  X(stream_destroy, cuStreamDestroy_v2, (Stream))                                      \
  X(stream_synchronize, cuStreamSynchronize, (Stream))                                 \
  X(stream_wait, cuStreamWaitEvent, (Stream, Event, unsigned))                         \
  X(event_create, cuEventCreate, (Event*, unsigned))                                   \
  X(event_destroy, cuEventDestroy_v2, (Event))                                         \
  X(event_record, cuEventRecord, (Event, Stream))                                      \
  X(event_query, cuEventQuery, (Event))                                                \
  X(event_synchronize, cuEventSynchronize, (Event))

struct Api {
#define PENSTOCK_MEMBER(member, symbol, parameters) Result(*member) parameters = nullptr;
  PENSTOCK_CUDA_SYMBOLS(PENSTOCK_MEMBER)
#undef PENSTOCK_MEMBER
};

// Where a library was looked for and what came of it.
struct Library {
  const Api* api = nullptr;  // null: not usable, and why_not says why
  std::string why_not;
  int version = 0;  // of the driver: 12040 for 12.4
};

// $PENSTOCK_LIBCUDA, or libcuda.so.1 as the dynamic loader finds it. Opened once.
const Library& open_library();

// The same, but null where this process has not loaded it: then it has no device memory either. Costs next to nothing.
const Api* loaded_library();

// "CUDA_ERROR_OUT_OF_MEMORY: out of memory"
std::string describe(const Api& api, Result result);

}  // namespace penstock::cuda
