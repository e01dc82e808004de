// libcuda.so.1: the driver, its devices and their primary contexts.
#include <dlfcn.h>

#include <cstdio>
#include <map>

#include "calls.h"
#include "state.h"

using sim::Result;

namespace {

struct ErrorText {
  const char* name;
  const char* meaning;
};

const ErrorText* find_error(Result error) {
  static const std::map<Result, ErrorText> table = {
      {0, {"CUDA_SUCCESS", "no error"}},
      {1, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
      {2, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
      {3, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
      {4, {"CUDA_ERROR_DEINITIALIZED", "driver shutting down"}},
      {100, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
      {101, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
      {201, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
      {214, {"CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"}},
      {304, {"CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"}},
      {400, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
      {500, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
      {600, {"CUDA_ERROR_NOT_READY", "device not ready"}},
      {700, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
      {712,
       {"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"}},
      {713, {"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"}},
      {719, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
      {801, {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}},
      {803, {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"}},
      {999, {"CUDA_ERROR_UNKNOWN", "unknown error"}},
  };
  const auto found = table.find(error);
  return found == table.end() ? nullptr : &found->second;
}

bool exists(int device) {
  const std::lock_guard lock(sim::state().mutex);
  return device >= 0 && static_cast<std::uint64_t>(device) < sim::state().settings.devices;
}

// With the state locked.
int attribute_of(int attribute, int device) {
  const sim::Settings& settings = sim::state().settings;
  const int unified = settings.unified != 0 ? 1 : 0;
  switch (attribute) {
    case 1:  // MAX_THREADS_PER_BLOCK
      return 1024;
    case 18:  // INTEGRATED
      return unified;
    case 19:  // CAN_MAP_HOST_MEMORY
    case 31:  // CONCURRENT_KERNELS
    case 41:  // UNIFIED_ADDRESSING
    case 83:  // MANAGED_MEMORY
    case 89:  // CONCURRENT_MANAGED_ACCESS
    case 99:  // HOST_REGISTER_SUPPORTED
      return 1;
    case 33:  // PCI_BUS_ID
      return device + 1;
    case 40:  // ASYNC_ENGINE_COUNT
      return 2;
    case 75:  // COMPUTE_CAPABILITY_MAJOR
      return 9;
    case 88:   // PAGEABLE_MEMORY_ACCESS
    case 100:  // PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
    case 101:  // DIRECT_MANAGED_MEM_ACCESS_FROM_HOST
      return unified;
    case 91:  // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
      return 1;
    case 116:  // GPU_DIRECT_RDMA_SUPPORTED
      return 1;
    case 130:  // NUMA_CONFIG
      return 0;
    case 134:  // HOST_NUMA_ID
      return static_cast<int>(settings.numa);
    default:
      return 0;
  }
}

}  // namespace

extern "C" {

SIM_EXPORT Result cuInit(unsigned flags) {
  static sim::Symbol here("cuInit");
  const sim::Entry entry = sim::enter_uninitialized(here);
  if (entry.now != sim::kSuccess) {
    return entry.now;
  }
  if (flags != 0) {
    return sim::kInvalidValue;
  }
  if (!exists(0)) {
    return sim::kNoDevice;
  }
  return sim::mark_initialized() ? sim::kSuccess : sim::kNotInitialized;
}

SIM_EXPORT Result cuDriverGetVersion(int* version) {
  static sim::Symbol here("cuDriverGetVersion");
  const sim::Entry entry = sim::enter_uninitialized(here);
  if (entry.now != sim::kSuccess) {
    return entry.now;
  }
  const std::lock_guard lock(sim::state().mutex);
  *version = static_cast<int>(sim::state().settings.driver);
  return sim::kSuccess;
}

SIM_EXPORT Result cuGetErrorName(Result error, const char** name) {
  static sim::Symbol here("cuGetErrorName");
  const sim::Entry entry = sim::enter_uninitialized(here);
  const ErrorText* const found = entry.now == sim::kSuccess ? find_error(error) : nullptr;
  *name = found == nullptr ? nullptr : found->name;
  return found == nullptr ? sim::kInvalidValue : sim::kSuccess;
}

SIM_EXPORT Result cuGetErrorString(Result error, const char** meaning) {
  static sim::Symbol here("cuGetErrorString");
  const sim::Entry entry = sim::enter_uninitialized(here);
  const ErrorText* const found = entry.now == sim::kSuccess ? find_error(error) : nullptr;
  *meaning = found == nullptr ? nullptr : found->meaning;
  return found == nullptr ? sim::kInvalidValue : sim::kSuccess;
}

// Callers name functions without the version that the library's symbols end with.
SIM_EXPORT Result cuGetProcAddress_v2(const char* symbol, void** function, int, std::uint64_t, int* status) {
  static sim::Symbol here("cuGetProcAddress_v2");
  const sim::Entry entry = sim::enter_uninitialized(here);
  if (entry.now != sim::kSuccess) {
    return entry.now;
  }
  Dl_info self{};
  dladdr(reinterpret_cast<void*>(&cuInit), &self);
  void* const library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  *function = dlsym(library, sim::text(symbol, "_v2").c_str());
  if (*function == nullptr) {
    *function = dlsym(library, symbol);
  }
  dlclose(library);
  if (status != nullptr) {
    *status = *function == nullptr ? 1 : 0;  // CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
  }
  return *function == nullptr ? sim::kNotFound : sim::kSuccess;
}

SIM_EXPORT Result cuDeviceGetCount(int* count) {
  SIM_ENTER(cuDeviceGetCount);
  const std::lock_guard lock(sim::state().mutex);
  *count = static_cast<int>(sim::state().settings.devices);
  return sim::kSuccess;
}

SIM_EXPORT Result cuDeviceGet(int* device, int ordinal) {
  SIM_ENTER(cuDeviceGet);
  if (!exists(ordinal)) {
    return sim::kInvalidDevice;
  }
  *device = ordinal;
  return sim::kSuccess;
}

SIM_EXPORT Result cuDeviceGetName(char* name, int nbytes, int device) {
  SIM_ENTER(cuDeviceGetName);
  if (!exists(device)) {
    return sim::kInvalidDevice;
  }
  std::snprintf(name, nbytes, "Simulated Accelerator");
  return sim::kSuccess;
}

SIM_EXPORT Result cuDeviceGetAttribute(int* value, int attribute, int device) {
  SIM_ENTER(cuDeviceGetAttribute);
  if (!exists(device)) {
    return sim::kInvalidDevice;
  }
  const std::lock_guard lock(sim::state().mutex);
  *value = attribute_of(attribute, device);
  return sim::kSuccess;
}

SIM_EXPORT Result cuDeviceTotalMem_v2(std::size_t* nbytes, int device) {
  SIM_ENTER(cuDeviceTotalMem_v2);
  if (!exists(device)) {
    return sim::kInvalidDevice;
  }
  const std::lock_guard lock(sim::state().mutex);
  *nbytes = sim::state().settings.memory;
  return sim::kSuccess;
}

SIM_EXPORT Result cuDeviceGetPCIBusId(char* text, int nbytes, int device) {
  SIM_ENTER(cuDeviceGetPCIBusId);
  if (!exists(device)) {
    return sim::kInvalidDevice;
  }
  std::snprintf(text, nbytes, "0000:%02X:00.0", device + 1);
  return sim::kSuccess;
}

}  // extern "C"
