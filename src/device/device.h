// Devices: memory that the host can't touch, and the queues that copies to and from it go through.
//
// These interfaces name no vendor; cuda_device.cc implements them. A Device is shared and safe from several threads.
// Every call that fails throws Error(kDevice) or, where memory ran out, Error(kMemory); the message names the device
// and the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "penstock/device.h"

namespace penstock {

// What has to be over before a copy that was told to wait for it begins: a moment in somebody's stream.
class Moment {
 public:
  virtual ~Moment() = default;
  // Until it has come, on the host.
  virtual void wait() const = 0;
};

// A queue of copies in order. Made, and used, by one thread; may be destroyed by another, once idle.
class Lane {
 public:
  using Ticket = std::uint64_t;  // never 0

  // Waits for what was started.
  virtual ~Lane() = default;

  // Copies that begin from now on wait for it. Kept until they have.
  virtual void wait_for(std::shared_ptr<const Moment> moment) = 0;

  // Starts a copy. The host memory is pinned (else the driver makes the copy slow), and stays until the copy is over.
  virtual void to_device(std::uint64_t address, const std::byte* from, std::uint64_t nbytes) = 0;
  virtual void to_host(std::byte* to, std::uint64_t address, std::uint64_t nbytes) = 0;
  virtual void within_device(std::uint64_t to, std::uint64_t from, std::uint64_t nbytes) = 0;

  // A ticket for all that was started so far. Tickets pass in their order.
  virtual Ticket mark() = 0;
  // Whether it is over, well or not; waits for that.
  virtual bool passed(Ticket ticket) noexcept = 0;
  virtual void wait(Ticket ticket) noexcept = 0;
  // Waits for all that was started, with or without a ticket.
  virtual void drain() noexcept = 0;
  // Throws what went wrong with any copy of this lane so far.
  virtual void check() const = 0;
};

// How memory was made fit for copies that don't involve the processor.
enum class Pinning : std::uint8_t { kRegistered, kAllocated, kUnpinned };

// An address of a device, counted from the start of memory that was registered for files; of other memory, from itself.
struct DeviceSpot {
  std::uint64_t base = 0;
  std::uint64_t distance = 0;
};

// A file that a device reads and writes by itself, past the host. Safe from several threads. Its functions return when
// the bytes have moved and give the number of requests; they know of no stream: what is queued and uses the memory has
// to be over. Throws Error that names the file, the device and the call.
class DeviceFile {
 public:
  virtual ~DeviceFile() = default;
  virtual unsigned read(std::uint64_t offset, const DeviceSpot& to, std::uint64_t nbytes) = 0;
  virtual unsigned write(std::uint64_t offset, const DeviceSpot& from, std::uint64_t nbytes) = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const noexcept = 0;
  const std::string& name() const noexcept { return info().name; }

  // On the calling thread.
  virtual std::unique_ptr<Lane> make_lane() = 0;

  // The moment at which everything is over that is queued on that stream now.
  virtual std::shared_ptr<const Moment> moment(void* stream) = 0;

  struct Free {
    std::uint64_t free = 0;
    std::uint64_t total = 0;
  };
  virtual Free memory() = 0;
  virtual std::shared_ptr<void> allocate(std::uint64_t nbytes) = 0;  // get() is the address

  // Makes host memory that exists fit for copies, for all devices; false, with the reason, when that is refused.
  virtual bool pin(std::byte* data, std::size_t nbytes, std::string& reason) noexcept = 0;
  virtual void unpin(std::byte* data) noexcept = 0;
  // Such memory from the driver; null, with the reason, when that is refused.
  virtual std::byte* allocate_pinned(std::size_t nbytes, std::string& reason) noexcept = 0;
  virtual void free_pinned(std::byte* data) noexcept = 0;

  // Gets files ready for the device itself; false, with the reason, when that is refused. gds.h says whether to ask.
  virtual bool start_files(std::string& reason) = 0;
  // After that. A descriptor with O_DIRECT, which the caller may close. Throws Error when the file is refused.
  virtual std::unique_ptr<DeviceFile> open_file(int fd, const std::string& path) = 0;
  // Makes memory of the device quicker for files for as long as the result lives; null, with the reason, when that is
  // refused.
  virtual std::shared_ptr<void> register_for_files(std::uint64_t address, std::uint64_t nbytes,
                                                   std::string& reason) = 0;
};

// What an address is.
struct MemoryPlace {
  std::shared_ptr<Device> device;  // null: the host's, or reached by the host as its own
  bool unified = false;            // of a device, but the host may read and write it: managed, or shared by both
  bool is_first = false;           // of its allocation on the device: no copy reaches over it from what lies before
};

// Asks the driver, if this process has it loaded: else there is no device memory. Throws Error(kDevice) for memory
// that can't be used in a child of fork().
MemoryPlace find_place(const void* address);

// Loads the driver, and says which it is: "CUDA 12.8". Empty where there is none that can be used.
std::string driver_version();

// Loads the driver. Throws Error(kDevice) when there is no such device, with what there is.
std::shared_ptr<Device> open_device(int number);

// The lanes of one load or save on one device: each thread has its own, made when it first asks.
class Lanes {
 public:
  explicit Lanes(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  Device& device() const noexcept { return *device_; }
  // Copies of every lane, present and to come, wait for this from now on.
  void wait_for(std::shared_ptr<const Moment> moment);
  Lane& mine();
  // The same, of a thread that has asked for it: for what it has started.
  Lane& started() noexcept;
  // Waits, on the host, for what copies wait for. For those who write to the memory by other means.
  void settle();

  // Copies from and to host memory of any kind, through pinned blocks, and waits.
  void fill(std::uint64_t address, const std::byte* from, std::uint64_t nbytes);
  void fetch(std::byte* to, std::uint64_t address, std::uint64_t nbytes);

 private:
  struct Entry {
    std::unique_ptr<Lane> lane;
    std::size_t told = 0;  // of the moments
  };

  const std::shared_ptr<Device> device_;
  std::mutex mutex_;
  std::map<std::thread::id, Entry> lanes_;
  std::vector<std::shared_ptr<const Moment>> moments_;
  std::size_t settled_ = 0;  // of the moments
};

}  // namespace penstock
