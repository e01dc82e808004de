// CUDA's driver types and constants as penstock declares them: nothing of CUDA is needed to build. A test compares
// every prototype, constant and size with the vendor's headers (tests/cuda).
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::cuda {

using Result = int;                  // CUresult
using Ordinal = int;                 // CUdevice
using Address = unsigned long long;  // CUdeviceptr
using Context = struct CUctx_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kNotReady = 600;
inline constexpr Result kHostMemoryAlreadyRegistered = 712;

// CUpointer_attribute
inline constexpr int kPointerContext = 1;
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kPointerIsManaged = 8;
inline constexpr int kPointerDeviceOrdinal = 9;
inline constexpr int kPointerRangeStart = 11;
inline constexpr int kPointerRangeSize = 12;

// CUmemorytype
inline constexpr unsigned kMemoryHost = 1;
inline constexpr unsigned kMemoryDevice = 2;

// CUdevice_attribute
inline constexpr int kAttributeIntegrated = 18;
inline constexpr int kAttributePageableMemoryAccess = 88;
inline constexpr int kAttributePageableMemoryAccessUsesHostPageTables = 100;
inline constexpr int kAttributeHostNumaId = 134;

inline constexpr unsigned kStreamNonBlocking = 1;     // CU_STREAM_NON_BLOCKING
inline constexpr unsigned kEventBlockingSync = 1;     // CU_EVENT_BLOCKING_SYNC: waiting takes no processor time
inline constexpr unsigned kEventDisableTiming = 2;    // CU_EVENT_DISABLE_TIMING
inline constexpr unsigned kHostRegisterPortable = 1;  // CU_MEMHOSTREGISTER_PORTABLE
inline constexpr unsigned kHostAllocPortable = 1;     // CU_MEMHOSTALLOC_PORTABLE
inline constexpr unsigned kAttachGlobal = 1;          // CU_MEM_ATTACH_GLOBAL

// Driver API 12.0: what the symbols below have in common since then.
inline constexpr int kOldestDriver = 12000;

}  // namespace penstock::cuda
