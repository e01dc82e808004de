#include "device/cuda_device.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <deque>
#include <fstream>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda_file.h"

namespace penstock::cuda {
namespace {

// An event, which is made in a context and destroyed there.
class OwnedEvent {
 public:
  explicit OwnedEvent(std::shared_ptr<const CudaDevice> device) : device_(std::move(device)) {
    device_->require(device_->api().event_create(&event_, kEventBlockingSync | kEventDisableTiming), "cuEventCreate");
  }
  OwnedEvent(OwnedEvent&& other) noexcept
      : device_(std::move(other.device_)), event_(std::exchange(other.event_, nullptr)) {}
  OwnedEvent& operator=(OwnedEvent&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(event_, other.event_);
    return *this;
  }
  ~OwnedEvent() {
    if (event_ == nullptr) return;
    const ContextScope scope(*device_);
    device_->api().event_destroy(event_);
  }

  Event get() const noexcept { return event_; }

  void wait() const {
    const ContextScope scope(*device_);
    scope.require();
    device_->require(device_->api().event_synchronize(event_), "cuEventSynchronize");
  }

 private:
  std::shared_ptr<const CudaDevice> device_;
  Event event_ = nullptr;
};

class CudaMoment final : public Moment {
 public:
  explicit CudaMoment(OwnedEvent recorded) : event(std::move(recorded)) {}
  void wait() const override { event.wait(); }

  const OwnedEvent event;
};

class CudaLane final : public Lane {
 public:
  explicit CudaLane(std::shared_ptr<const CudaDevice> device) : device_(std::move(device)), api_(device_->api()) {
    const ContextScope scope(*device_);
    scope.require();
    device_->require(api_.stream_create(&stream_, kStreamNonBlocking), "cuStreamCreate");
  }
  ~CudaLane() override {
    const ContextScope scope(*device_);
    api_.stream_synchronize(stream_);
    marks_.clear();
    spare_.clear();
    api_.stream_destroy(stream_);
  }

  void wait_for(std::shared_ptr<const Moment> moment) override {
    const ContextScope scope(*device_);
    scope.require();
    const Event event = static_cast<const CudaMoment&>(*moment).event.get();
    device_->require(api_.stream_wait(stream_, event, 0), "cuStreamWaitEvent");
  }

  void to_device(std::uint64_t address, const std::byte* from, std::uint64_t nbytes) override {
    start("cuMemcpyHtoDAsync", [&] { return api_.copy_to_device(address, from, nbytes, stream_); });
  }
  void to_host(std::byte* to, std::uint64_t address, std::uint64_t nbytes) override {
    start("cuMemcpyDtoHAsync", [&] { return api_.copy_to_host(to, address, nbytes, stream_); });
  }
  void within_device(std::uint64_t to, std::uint64_t from, std::uint64_t nbytes) override {
    start("cuMemcpyDtoDAsync", [&] { return api_.copy_within(to, from, nbytes, stream_); });
  }

  Ticket mark() override {
    const ContextScope scope(*device_);
    scope.require();
    if (spare_.empty()) spare_.emplace_back(device_);
    device_->require(api_.event_record(spare_.back().get(), stream_), "cuEventRecord");
    marks_.push_back(std::move(spare_.back()));
    spare_.pop_back();
    return ++last_;
  }

  bool passed(Ticket ticket) noexcept override {
    settle(
        ticket, [this](Event event) { return api_.event_query(event); }, "cuEventQuery");
    return is_past(ticket);
  }
  void wait(Ticket ticket) noexcept override {
    settle(
        ticket, [this](Event event) { return api_.event_synchronize(event); }, "cuEventSynchronize");
  }
  void drain() noexcept override {
    const ContextScope scope(*device_);
    const Result result = api_.stream_synchronize(stream_);
    if (result != kSuccess) note_failure(result, "cuStreamSynchronize");
  }
  void check() const override {
    if (!failure_.empty()) throw Error(ErrorKind::kDevice, failure_);
  }

 private:
  // The ticket of the oldest mark is last_ - marks_.size() + 1.
  bool is_past(Ticket ticket) const noexcept { return ticket + marks_.size() <= last_; }

  template <typename Call>
  void start(const char* name, const Call& call) {
    const ContextScope scope(*device_);
    scope.require();
    device_->require(call(), name);
  }

  // Nobody knows whether it was a copy's: all are waited for, since what they use is about to be used again or freed.
  void note_failure(Result result, const char* name) noexcept {
    if (failure_.empty()) failure_ = device_->describe_failure(result, name);
    api_.stream_synchronize(stream_);
  }

  // Looks at the marks up to a ticket, in order, until one is not over.
  template <typename Ask>
  void settle(Ticket ticket, const Ask& ask, const char* name) noexcept {
    if (is_past(ticket)) return;
    const ContextScope scope(*device_);
    while (!is_past(ticket)) {
      const Result result = ask(marks_.front().get());
      if (result == kNotReady) return;
      if (result != kSuccess) note_failure(result, name);
      spare_.push_back(std::move(marks_.front()));
      marks_.pop_front();
    }
  }

  const std::shared_ptr<const CudaDevice> device_;
  const Api& api_;
  Stream stream_ = nullptr;
  std::deque<OwnedEvent> marks_;  // recorded and not yet seen to be over, oldest first
  std::vector<OwnedEvent> spare_;
  Ticket last_ = 0;
  std::string failure_;
};

// The driver knows where it is recent, else the system does.
int numa_node_of(const Api& api, Ordinal ordinal) {
  int told = -1;
  if (api.device_attribute(&told, kAttributeHostNumaId, ordinal) == kSuccess && told >= 0) return told;
  std::array<char, 32> bus{};
  if (api.device_bus_id(bus.data(), static_cast<int>(bus.size()), ordinal) != kSuccess) return -1;
  std::string name(bus.data());
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char letter) { return std::tolower(letter); });
  std::ifstream file("/sys/bus/pci/devices/" + name + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

int attribute_of(const Api& api, Ordinal ordinal, int attribute) {
  int value = 0;
  return api.device_attribute(&value, attribute, ordinal) == kSuccess ? value : 0;
}

}  // namespace

CudaDevice::CudaDevice(const Api& api, Ordinal ordinal, Context context, DeviceInfo info)
    : api_(api), ordinal_(ordinal), context_(context), info_(std::move(info)) {}

std::string CudaDevice::describe_failure(Result result, const char* call) const {
  return fmt::format("{}: {} failed: {}", info_.name, call, describe(api_, result));
}

void CudaDevice::require(Result result, const char* call) const {
  if (result == kSuccess) return;
  throw Error(result == kOutOfMemory ? ErrorKind::kMemory : ErrorKind::kDevice, describe_failure(result, call));
}

std::unique_ptr<Lane> CudaDevice::make_lane() {
  return std::make_unique<CudaLane>(shared_from_this());
}

std::shared_ptr<const Moment> CudaDevice::moment(void* stream) {
  const ContextScope scope(*this);
  scope.require();
  OwnedEvent event(shared_from_this());
  require(api_.event_record(event.get(), static_cast<Stream>(stream)), "cuEventRecord");
  return std::make_shared<CudaMoment>(std::move(event));
}

Device::Free CudaDevice::memory() {
  const ContextScope scope(*this);
  scope.require();
  std::size_t free = 0;
  std::size_t total = 0;
  require(api_.memory_info(&free, &total), "cuMemGetInfo");
  return {free, total};
}

std::shared_ptr<void> CudaDevice::allocate(std::uint64_t nbytes) {
  const ContextScope scope(*this);
  scope.require();
  Address address = 0;
  if (info_.unified) {
    require(api_.allocate_managed(&address, nbytes, kAttachGlobal), "cuMemAllocManaged");
  } else {
    require(api_.allocate(&address, nbytes), "cuMemAlloc");
  }
  return {reinterpret_cast<void*>(address), [device = shared_from_this()](void* memory) {
            const ContextScope inner(*device);
            device->api().free(reinterpret_cast<Address>(memory));
          }};
}

bool CudaDevice::pin(std::byte* data, std::size_t nbytes, std::string& reason) noexcept {
  const ContextScope scope(*this);
  if (!scope.is_entered(reason)) return false;
  const Result result = api_.host_register(data, nbytes, kHostRegisterPortable);
  if (result != kSuccess) reason = describe_failure(result, "cuMemHostRegister");
  return result == kSuccess;
}

void CudaDevice::unpin(std::byte* data) noexcept {
  const ContextScope scope(*this);
  api_.host_unregister(data);
}

std::byte* CudaDevice::allocate_pinned(std::size_t nbytes, std::string& reason) noexcept {
  const ContextScope scope(*this);
  if (!scope.is_entered(reason)) return nullptr;
  void* data = nullptr;
  const Result result = api_.host_allocate(&data, nbytes, kHostAllocPortable);
  if (result != kSuccess) reason = describe_failure(result, "cuMemHostAlloc");
  return result == kSuccess ? static_cast<std::byte*>(data) : nullptr;
}

void CudaDevice::free_pinned(std::byte* data) noexcept {
  const ContextScope scope(*this);
  api_.host_free(data);
}

bool CudaDevice::start_files(std::string& reason) {
  const ContextScope scope(*this);
  return scope.is_entered(reason) && open_file_driver(api_, reason) != nullptr;
}

std::unique_ptr<DeviceFile> CudaDevice::open_file(int fd, const std::string& path) {
  return open_device_file(shared_from_this(), fd, path);
}

std::shared_ptr<void> CudaDevice::register_for_files(std::uint64_t address, std::uint64_t nbytes, std::string& reason) {
  return cuda::register_for_files(shared_from_this(), address, nbytes, reason);
}

DeviceInfo describe_device(const Api& api, Ordinal ordinal) {
  DeviceInfo info;
  info.number = ordinal;
  std::array<char, 256> name{};
  const bool has_name = api.device_name(name.data(), static_cast<int>(name.size()) - 1, ordinal) == kSuccess;
  info.name = has_name ? fmt::format("cuda:{} ({})", ordinal, name.data()) : fmt::format("cuda:{}", ordinal);
  std::size_t total = 0;
  if (api.device_total_memory(&total, ordinal) == kSuccess) info.total_memory = total;
  info.numa_node = numa_node_of(api, ordinal);
  // Not where each has memory of its own that the other reaches (Grace Hopper): weights belong in the device's there.
  info.unified = attribute_of(api, ordinal, kAttributeIntegrated) != 0;
  return info;
}

const Api& require_driver() {
  const Library& library = open_library();
  if (library.api == nullptr) {
    throw Error(ErrorKind::kDevice, fmt::format("no device can be used: {}", library.why_not));
  }
  const Result result = library.api->init(0);
  if (result == kSuccess) return *library.api;
  const char* after_fork =
      result == kNotInitialized ? "; a child of fork() can't use devices that its parent has used" : "";
  throw Error(ErrorKind::kDevice,
              fmt::format("no device can be used: cuInit failed: {}{}", describe(*library.api, result), after_fork));
}

}  // namespace penstock::cuda
