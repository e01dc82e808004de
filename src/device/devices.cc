// Which devices there are, and whose memory an address is.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/fork.h"
#include "device/cuda_device.h"
#include "device/pinned_pool.h"

namespace penstock {
namespace {

using cuda::Api;
using cuda::Context;
using cuda::CudaDevice;
using cuda::Ordinal;

// One Device for each context that is used, kept until the process ends: the driver does not outlive its streams well.
class KnownDevices {
 public:
  // `context` null: the primary one, which is made if nobody has yet.
  std::shared_ptr<CudaDevice> find(const Api& api, Ordinal ordinal, Context context) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<CudaDevice>& known = devices_[{ordinal, context}];
    if (known != nullptr) return known;
    DeviceInfo info = cuda::describe_device(api, ordinal);
    Context used = context;
    if (used == nullptr) {
      const cuda::Result result = api.primary_retain(&used, ordinal);
      if (result != cuda::kSuccess) {
        throw Error(ErrorKind::kDevice,
                    fmt::format("{}: cuDevicePrimaryCtxRetain failed: {}", info.name, cuda::describe(api, result)));
      }
    }
    known = std::make_shared<CudaDevice>(api, ordinal, used, std::move(info));
    return known;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<Ordinal, Context>, std::shared_ptr<CudaDevice>> devices_;
};

auto& known_devices = *new PerProcess<KnownDevices>();

bool host_can_read(const void* address) {
  std::byte byte{};
  const iovec local{&byte, 1};
  const iovec remote{const_cast<void*>(address), 1};
  return ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == 1 || errno != EFAULT;
}

template <typename Value>
bool ask_pointer(const Api& api, int attribute, const void* address, Value& value) {
  return api.pointer_attribute(&value, attribute, reinterpret_cast<cuda::Address>(address)) == cuda::kSuccess;
}

// Why the driver does not tell whose memory an address is.
std::string describe_silence(const Api& api, cuda::Result result) {
  if (result == cuda::kNotInitialized || result == cuda::kDeinitialized) {
    return "memory of a device can't be used here: in a child of fork() the driver has to be started anew "
           "(multiprocessing's \"spawn\" does)";
  }
  return "memory of a device can't be used: cuPointerGetAttribute failed: " + cuda::describe(api, result);
}

int count_devices(const Api& api) {
  int count = 0;
  if (const cuda::Result result = api.device_count(&count); result != cuda::kSuccess) {
    throw Error(ErrorKind::kDevice,
                fmt::format("no device can be used: cuDeviceGetCount failed: {}", cuda::describe(api, result)));
  }
  return count;
}

std::string describe_count(int count) {
  return count == 1 ? "there is 1, number 0" : fmt::format("there are {}, from 0 on", count);
}

}  // namespace

MemoryPlace find_place(const void* address) {
  const Api* api = cuda::loaded_library();
  if (api == nullptr || address == nullptr) return {};
  unsigned type = 0;
  const cuda::Result result =
      api->pointer_attribute(&type, cuda::kPointerMemoryType, reinterpret_cast<cuda::Address>(address));
  if (result == cuda::kInvalidValue) return {};
  if (result != cuda::kSuccess) {
    // A driver that was never started, or does not work any more, keeps nobody from using the host's memory.
    if (host_can_read(address)) return {};
    throw Error(ErrorKind::kDevice, describe_silence(*api, result));
  }
  if (type != cuda::kMemoryDevice) return {};
  unsigned managed = 0;
  if (ask_pointer(*api, cuda::kPointerIsManaged, address, managed) && managed != 0) return {nullptr, true};
  Context context = nullptr;
  int ordinal = 0;
  if (!ask_pointer(*api, cuda::kPointerContext, address, context)) context = nullptr;
  const cuda::Result found =
      api->pointer_attribute(&ordinal, cuda::kPointerDeviceOrdinal, reinterpret_cast<cuda::Address>(address));
  if (found != cuda::kSuccess) throw Error(ErrorKind::kDevice, describe_silence(*api, found));
  cuda::Address start = 0;
  const bool is_first =
      !ask_pointer(*api, cuda::kPointerRangeStart, address, start) || start == reinterpret_cast<cuda::Address>(address);
  return {known_devices.get().find(*api, ordinal, context), false, is_first};
}

std::shared_ptr<Device> open_device(int number) {
  const Api& api = cuda::require_driver();
  const int count = count_devices(api);
  if (number < 0 || number >= count) {
    throw Error(ErrorKind::kDevice, fmt::format("there is no device {}: {}", number, describe_count(count)));
  }
  Ordinal ordinal = 0;
  if (const cuda::Result result = api.device_get(&ordinal, number); result != cuda::kSuccess) {
    throw Error(ErrorKind::kDevice,
                fmt::format("cuda:{}: cuDeviceGet failed: {}", number, cuda::describe(api, result)));
  }
  return known_devices.get().find(api, ordinal, nullptr);
}

std::string driver_version() {
  const cuda::Library& library = cuda::open_library();
  if (library.api == nullptr) return "";
  return fmt::format("CUDA {}.{}", library.version / 1000, library.version % 1000 / 10);
}

std::vector<DeviceInfo> list_devices(std::string* why_none) {
  std::vector<DeviceInfo> devices;
  try {
    const Api& api = cuda::require_driver();
    const int count = count_devices(api);
    for (int number = 0; number < count; ++number) {
      Ordinal ordinal = 0;
      if (api.device_get(&ordinal, number) == cuda::kSuccess) devices.push_back(cuda::describe_device(api, ordinal));
    }
    if (devices.empty() && why_none != nullptr) *why_none = "the driver has no devices";
  } catch (const Error& error) {
    if (why_none != nullptr) *why_none = error.what();
  }
  return devices;
}

std::optional<int> device_of(const void* address) {
  const MemoryPlace place = find_place(address);
  if (place.device == nullptr) return std::nullopt;
  return place.device->info().number;
}

Allocator device_allocator(int device) {
  return [opened = open_device(device)](std::uint64_t nbytes) -> AllocatedMemory {
    std::shared_ptr<void> memory = opened->allocate(std::max<std::uint64_t>(nbytes, 1));
    auto* const data = static_cast<std::byte*>(memory.get());
    return {data, std::move(memory), std::nullopt};
  };
}

}  // namespace penstock
