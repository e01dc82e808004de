// What src/device declares of CUDA and cuFile, compared with the vendor's headers. Compiled by test_headers.py, never
// linked: every line below is an assertion.
//
// The vendor's headers come first: the structs behind contexts, streams and events are then the same ones here and
// there.
#include <cuda.h>
#include <cufile.h>

#include <cstddef>
#include <string_view>
#include <type_traits>

#include "device/cuda_api.h"
#include "device/cufile_api.h"

namespace penstock::cuda {
namespace {

// Our struct -> the vendor's; their members are compared below.
template <typename Ours>
struct Struct {
  using Vendor = void;
};
template <>
struct Struct<FileError> {
  using Vendor = CUfileError_t;
};
template <>
struct Struct<FileDescription> {
  using Vendor = CUfileDescr_t;
};

// The same type; an integer as wide as the vendor's enum; our struct for the vendor's; or pointers to such.
template <typename Ours, typename Vendor>
constexpr bool same() {
  if constexpr (std::is_same_v<Ours, Vendor>) {
    return true;
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Vendor>) {
    using To = std::remove_pointer_t<Ours>;
    using VendorTo = std::remove_pointer_t<Vendor>;
    return std::is_const_v<To> == std::is_const_v<VendorTo> &&
           same<std::remove_const_t<To>, std::remove_const_t<VendorTo>>();
  } else if constexpr (std::is_enum_v<Vendor>) {
    return std::is_integral_v<Ours> && sizeof(Ours) == sizeof(Vendor);
  } else {
    return std::is_class_v<Ours> && std::is_same_v<typename Struct<Ours>::Vendor, Vendor>;
  }
}

template <typename Ours, typename Vendor>
struct SameFunction : std::false_type {};
template <typename Ours, typename... OurParameters, typename Vendor, typename... VendorParameters>
requires(sizeof...(OurParameters) ==
         sizeof...(VendorParameters)) struct SameFunction<Ours (*)(OurParameters...), Vendor (*)(VendorParameters...)>
    : std::bool_constant<same<Ours, Vendor>() && (same<OurParameters, VendorParameters>() && ...)> {
};

// The vendor's headers rename functions by macros (cuCtxPushCurrent is cuCtxPushCurrent_v2): a prototype would be
// compared with the new one while dlsym() finds the old one. `written` is the name before that.
#define PENSTOCK_AS_TEXT(symbol) #symbol
#define PENSTOCK_CHECK_FUNCTION(api, member, symbol, written)                                                 \
  static_assert(std::string_view(PENSTOCK_AS_TEXT(symbol)) == written, written " is renamed by the headers"); \
  static_assert(SameFunction<decltype(api::member), decltype(&::symbol)>::value, written " is another function");

#define PENSTOCK_CHECK_CUDA(member, symbol, parameters) PENSTOCK_CHECK_FUNCTION(Api, member, symbol, #symbol)
PENSTOCK_CUDA_SYMBOLS(PENSTOCK_CHECK_CUDA)
#define PENSTOCK_CHECK_CUFILE(result, member, symbol, parameters) \
  PENSTOCK_CHECK_FUNCTION(FileApi, member, symbol, #symbol)
PENSTOCK_CUFILE_SYMBOLS(PENSTOCK_CHECK_CUFILE)

#define PENSTOCK_CHECK_VALUE(ours, vendor) \
  static_assert(static_cast<long long>(ours) == static_cast<long long>(vendor), #ours " is not " #vendor);

PENSTOCK_CHECK_VALUE(kSuccess, CUDA_SUCCESS)
PENSTOCK_CHECK_VALUE(kInvalidValue, CUDA_ERROR_INVALID_VALUE)
PENSTOCK_CHECK_VALUE(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY)
PENSTOCK_CHECK_VALUE(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED)
PENSTOCK_CHECK_VALUE(kDeinitialized, CUDA_ERROR_DEINITIALIZED)
PENSTOCK_CHECK_VALUE(kNoDevice, CUDA_ERROR_NO_DEVICE)
PENSTOCK_CHECK_VALUE(kInvalidContext, CUDA_ERROR_INVALID_CONTEXT)
PENSTOCK_CHECK_VALUE(kNotReady, CUDA_ERROR_NOT_READY)
PENSTOCK_CHECK_VALUE(kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
PENSTOCK_CHECK_VALUE(kPointerContext, CU_POINTER_ATTRIBUTE_CONTEXT)
PENSTOCK_CHECK_VALUE(kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
PENSTOCK_CHECK_VALUE(kPointerIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED)
PENSTOCK_CHECK_VALUE(kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
PENSTOCK_CHECK_VALUE(kPointerRangeStart, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
PENSTOCK_CHECK_VALUE(kPointerRangeSize, CU_POINTER_ATTRIBUTE_RANGE_SIZE)
PENSTOCK_CHECK_VALUE(kMemoryHost, CU_MEMORYTYPE_HOST)
PENSTOCK_CHECK_VALUE(kMemoryDevice, CU_MEMORYTYPE_DEVICE)
PENSTOCK_CHECK_VALUE(kAttributeIntegrated, CU_DEVICE_ATTRIBUTE_INTEGRATED)
PENSTOCK_CHECK_VALUE(kAttributePageableMemoryAccess, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)
PENSTOCK_CHECK_VALUE(kAttributePageableMemoryAccessUsesHostPageTables,
                     CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES)
PENSTOCK_CHECK_VALUE(kAttributeHostNumaId, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)
PENSTOCK_CHECK_VALUE(kStreamNonBlocking, CU_STREAM_NON_BLOCKING)
PENSTOCK_CHECK_VALUE(kEventBlockingSync, CU_EVENT_BLOCKING_SYNC)
PENSTOCK_CHECK_VALUE(kEventDisableTiming, CU_EVENT_DISABLE_TIMING)
PENSTOCK_CHECK_VALUE(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE)
PENSTOCK_CHECK_VALUE(kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE)
PENSTOCK_CHECK_VALUE(kAttachGlobal, CU_MEM_ATTACH_GLOBAL)
PENSTOCK_CHECK_VALUE(kFileSuccess, CU_FILE_SUCCESS)
PENSTOCK_CHECK_VALUE(kFileDriverFailed, CU_FILE_CUDA_DRIVER_ERROR)
PENSTOCK_CHECK_VALUE(kFileAlreadyOpen, CU_FILE_DRIVER_ALREADY_OPEN)
PENSTOCK_CHECK_VALUE(FileDescription{}.type, CU_FILE_HANDLE_TYPE_OPAQUE_FD)
static_assert(kOldestDriver <= CUDA_VERSION, "kOldestDriver is newer than these headers");

#define PENSTOCK_CHECK_STRUCT(ours)                                                                  \
  static_assert(sizeof(ours) == sizeof(Struct<ours>::Vendor), #ours " has another size");            \
  static_assert(alignof(ours) == alignof(Struct<ours>::Vendor), #ours " is aligned in another way"); \
  static_assert(std::is_trivially_copyable_v<ours>, #ours " is passed in another way");

#define PENSTOCK_CHECK_MEMBER(ours, member, vendor)                                                                \
  static_assert(offsetof(ours, member) == offsetof(Struct<ours>::Vendor, vendor), #member " is in another place"); \
  static_assert(sizeof(ours::member) == sizeof(Struct<ours>::Vendor::vendor), #member " has another size");

PENSTOCK_CHECK_STRUCT(FileError)
PENSTOCK_CHECK_MEMBER(FileError, file_error, err)
PENSTOCK_CHECK_MEMBER(FileError, driver_error, cu_err)
PENSTOCK_CHECK_STRUCT(FileDescription)
PENSTOCK_CHECK_MEMBER(FileDescription, type, type)
PENSTOCK_CHECK_MEMBER(FileDescription, fd, handle.fd)
PENSTOCK_CHECK_MEMBER(FileDescription, handle, handle.handle)
PENSTOCK_CHECK_MEMBER(FileDescription, operations, fs_ops)

}  // namespace
}  // namespace penstock::cuda
