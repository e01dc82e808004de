// How torch chooses devices and streams, and waits: its interfaces for a backend of one's own.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <mutex>
#include <vector>

#include "allocator.h"

namespace sim_torch {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

constexpr std::size_t kStreamsPerDevice = 4;

Device device_at(int index) {
  return {DeviceType::PrivateUse1, static_cast<DeviceIndex>(index)};
}

int number_of(Device device) {
  return device.has_index() ? device.index() : current_device();
}

Handle handle_of(const Stream& stream) {
  return reinterpret_cast<Handle>(stream.id());
}

Stream stream_of(int device, Handle handle) {
  return Stream(Stream::UNSAFE, device_at(device), reinterpret_cast<c10::StreamId>(handle));
}

int exchange_device(int device) {
  TORCH_CHECK(device < device_count(), "there is no device sim:", device, ": there are ", device_count());
  const int before = current_device();
  if (device >= 0) current_device() = device;
  return before;
}

// A few streams a device, given out in turn, as torch's own are.
Stream pooled_stream(int device) {
  static std::mutex mutex;
  static std::vector<Handle> streams[kMostDevices];
  static std::size_t next[kMostDevices] = {};
  const std::lock_guard lock(mutex);
  std::vector<Handle>& pool = streams[device];
  if (pool.size() < kStreamsPerDevice) {
    const Context context(device);
    SIM_CHECK(cuStreamCreate(&pool.emplace_back(nullptr), 1));
    return stream_of(device, pool.back());
  }
  return stream_of(device, pool[next[device]++ % pool.size()]);
}

bool is_over(CUresult result, const char* call) {
  if (result != kNotReady) check(result, call);
  return result != kNotReady;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::PrivateUse1; }
  Device exchangeDevice(Device device) const override { return device_at(exchange_device(device.index())); }
  Device getDevice() const override { return device_at(current_device()); }
  void setDevice(Device device) const override { exchange_device(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) current_device() = device.index();
  }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(device_count()); }

  Stream getStream(Device device) const override {
    return stream_of(number_of(device), current_stream(number_of(device)));
  }
  Stream getDefaultStream(Device device) const override { return stream_of(number_of(device), nullptr); }
  Stream getNewStream(Device device, int) const override { return pooled_stream(number_of(device)); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return pooled_stream(number_of(device)); }
  Stream exchangeStream(Stream stream) const override {
    Handle& current = current_stream(stream.device_index());
    const Stream before = stream_of(stream.device_index(), current);
    current = handle_of(stream);
    return before;
  }
  void* getStreamNativeHandle(const Stream stream) const override { return handle_of(stream); }
  bool queryStream(const Stream& stream) const override {
    const Context context(stream.device_index());
    return is_over(cuStreamQuery(handle_of(stream)), "cuStreamQuery");
  }
  void synchronizeStream(const Stream& stream) const override {
    const Context context(stream.device_index());
    SIM_CHECK(cuStreamSynchronize(handle_of(stream)));
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    const Context context(device < 0 ? current_device() : device);
    SIM_CHECK(cuCtxSynchronize());
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    record_use(data, handle_of(stream));
  }

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    const Context context(stream.device_index());
    if (*event == nullptr) SIM_CHECK(cuEventCreate(event, 2));
    SIM_CHECK(cuEventRecord(*event, handle_of(stream)));
  }
  void block(void* event, const Stream& stream) const override {
    const Context context(stream.device_index());
    if (event != nullptr) SIM_CHECK(cuStreamWaitEvent(handle_of(stream), event, 0));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || is_over(cuEventQuery(event), "cuEventQuery");
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) SIM_CHECK(cuEventSynchronize(event));
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    if (event != nullptr) cuEventDestroy_v2(event);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(DeviceIndex device) const override { return has_context(device); }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(device_count()); }
  void setCurrentDevice(DeviceIndex device) const override { exchange_device(device); }
  DeviceIndex getCurrentDevice() const override { return static_cast<DeviceIndex>(current_device()); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return static_cast<DeviceIndex>(exchange_device(device));
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchangeDevice(device); }
  at::Device getDeviceFromPtr(void* data) const override {
    const int device = device_of(data);
    TORCH_CHECK(device >= 0, "the address is no device's");
    return device_at(device);
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t nbytes) const override {
    const c10::DeviceGuard guard(storage.device());
    c10::DataPtr grown = device_allocator()->allocate(nbytes);
    const std::size_t kept = std::min(nbytes, storage.nbytes());
    if (kept > 0) device_allocator()->copy_data(grown.get(), storage.data(), kept);
    storage.set_data_ptr_noswap(std::move(grown));
    storage.set_nbytes(nbytes);
  }
};

const bool registered = [] {
  c10::SetAllocator(DeviceType::PrivateUse1, device_allocator());
  c10::impl::registerDeviceGuard(DeviceType::PrivateUse1, new Guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  c10::register_privateuse1_backend("sim");
  return true;
}();

}  // namespace
}  // namespace sim_torch
