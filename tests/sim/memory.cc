#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "state.h"

namespace sim {
namespace {

constexpr std::size_t kAlignment = 512;  // of device memory, as the driver's
constexpr std::size_t kPage = 4096;

std::size_t round_up(std::size_t nbytes, std::size_t alignment) {
  return (nbytes + alignment - 1) / alignment * alignment;
}

void keep(const SharedMemory& memory) {
  State& all = state();
  all.memory[memory->start] = memory;
  switch (memory->kind) {
    case Kind::kDevice:
      all.counters.device_bytes += memory->nbytes;
      all.counters.device_bytes_peak = std::max(all.counters.device_bytes_peak, all.counters.device_bytes);
      all.devices[memory->device].used += memory->nbytes;
      break;
    case Kind::kManaged:
      all.counters.managed_bytes += memory->nbytes;
      break;
    case Kind::kPinned:
    case Kind::kRegistered:
      all.counters.pinned_bytes += memory->nbytes;
      all.counters.pinned_bytes_peak = std::max(all.counters.pinned_bytes_peak, all.counters.pinned_bytes);
      break;
  }
}

void forget(const SharedMemory& memory) {
  State& all = state();
  all.memory.erase(memory->start);
  switch (memory->kind) {
    case Kind::kDevice:
      all.counters.device_bytes -= memory->nbytes;
      all.devices[memory->device].used -= memory->nbytes;
      break;
    case Kind::kManaged:
      all.counters.managed_bytes -= memory->nbytes;
      break;
    case Kind::kPinned:
    case Kind::kRegistered:
      all.counters.pinned_bytes -= memory->nbytes;
      break;
  }
}

Result map_for_host(const SharedMemory& memory) {
  void* const data =
      mmap(nullptr, memory->nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return kOutOfMemory;
  }
  memory->bytes = static_cast<std::byte*>(data);
  memory->start = as_address(data);
  keep(memory);
  return kSuccess;
}

bool pinning_is_refused(std::size_t nbytes) {
  const State& all = state();
  return all.settings.pinned_limit != 0 && all.counters.pinned_bytes + nbytes > all.settings.pinned_limit;
}

bool overlaps_known(Address start, std::size_t nbytes) {
  const auto& known = state().memory;
  const auto after = known.lower_bound(start + nbytes);
  if (after == known.begin()) {
    return false;
  }
  const Memory& before = *std::prev(after)->second;
  return before.start + before.nbytes > start;
}

// Copies that are yet to be made from or to it. A lost context makes none, whatever is queued there.
bool is_copied(const Memory& memory) {
  return memory.queued > 0 && state().devices[memory.device].context.lost == kSuccess;
}

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kDevice:
      return "device memory";
    case Kind::kManaged:
      return "managed memory";
    case Kind::kPinned:
      return "pinned memory";
    case Kind::kRegistered:
      return "registered memory";
  }
  return "memory";
}

bool DeviceMemory::map(std::size_t nbytes) {
  nbytes = round_up(nbytes, kPage);
  fd_ = memfd_create("simulated accelerator", MFD_CLOEXEC);
  if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(nbytes)) != 0) {
    return false;
  }
  void* const shown = mmap(nullptr, nbytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  void* const hidden = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  if (shown == MAP_FAILED || hidden == MAP_FAILED) {
    return false;
  }
  madvise(hidden, nbytes, MADV_DONTFORK);
  madvise(hidden, nbytes, MADV_HUGEPAGE);  // where the system has such for shared memory
  shown_ = static_cast<std::byte*>(shown);
  hidden_ = static_cast<std::byte*>(hidden);
  holes_[0] = nbytes;
  return true;
}

bool DeviceMemory::take(std::size_t nbytes, std::size_t& offset) {
  nbytes = round_up(nbytes, kAlignment);
  const auto hole = std::find_if(holes_.begin(), holes_.end(), [&](const auto& each) { return each.second >= nbytes; });
  if (hole == holes_.end()) {
    return false;
  }
  offset = hole->first;
  const std::size_t left = hole->second - nbytes;
  holes_.erase(hole);
  if (left > 0) {
    holes_[offset + nbytes] = left;
  }
  return true;
}

void DeviceMemory::give_back(std::size_t offset, std::size_t nbytes) {
  nbytes = round_up(nbytes, kAlignment);
  const std::size_t first = round_up(offset, kPage);
  const std::size_t last = (offset + nbytes) / kPage * kPage;
  if (last > first && state().settings.keep == 0) {
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
              static_cast<off_t>(last - first));
  }
  auto here = holes_.emplace(offset, nbytes).first;
  if (const auto next = std::next(here); next != holes_.end() && here->first + here->second == next->first) {
    here->second += next->second;
    holes_.erase(next);
  }
  if (here != holes_.begin()) {
    const auto before = std::prev(here);
    if (before->first + before->second == here->first) {
      before->second += here->second;
      holes_.erase(here);
    }
  }
}

Memory::~Memory() {
  if (home != nullptr) {
    home->give_back(offset, nbytes);
  } else if (kind != Kind::kRegistered && bytes != nullptr) {
    munmap(bytes, nbytes);
  }
}

Result allocate_device(int device, std::size_t nbytes, Address& address) {
  State& all = state();
  if (nbytes == 0) {
    return kInvalidValue;
  }
  DeviceMemory& home = all.devices[device].memory;
  std::size_t offset = 0;
  if (nbytes > all.settings.memory || all.devices[device].used + nbytes > all.settings.memory ||
      !home.take(nbytes, offset)) {
    return kOutOfMemory;
  }
  const auto memory = std::make_shared<Memory>(Kind::kDevice, device, nbytes);
  memory->home = &home;
  memory->offset = offset;
  memory->start = address = home.address(offset);
  memory->bytes = home.bytes(offset);
  keep(memory);
  return kSuccess;
}

Result allocate_managed(int device, std::size_t nbytes, Address& address) {
  if (nbytes == 0) {
    return kInvalidValue;
  }
  const auto memory = std::make_shared<Memory>(Kind::kManaged, device, nbytes);
  const Result result = map_for_host(memory);
  address = memory->start;
  return result;
}

Result allocate_pinned(int device, std::size_t nbytes, void*& data) {
  if (nbytes == 0) {
    return kInvalidValue;
  }
  if (pinning_is_refused(nbytes)) {
    return kOutOfMemory;
  }
  const auto memory = std::make_shared<Memory>(Kind::kPinned, device, nbytes);
  const Result result = map_for_host(memory);
  data = memory->bytes;
  return result;
}

Result register_host(int device, void* data, std::size_t nbytes) {
  const Address start = as_address(data);
  if (data == nullptr || nbytes == 0 || nbytes > std::numeric_limits<Address>::max() - start) {
    return kInvalidValue;
  }
  if (overlaps_known(start, nbytes)) {
    return kAlreadyRegistered;
  }
  if (!is_mapped(static_cast<std::byte*>(data), nbytes)) {
    return kInvalidValue;
  }
  const std::uint64_t limit = state().settings.register_limit;
  if (pinning_is_refused(nbytes) || (limit != 0 && nbytes > limit)) {
    return kOutOfMemory;
  }
  const auto memory = std::make_shared<Memory>(Kind::kRegistered, device, nbytes);
  memory->start = start;
  memory->bytes = static_cast<std::byte*>(data);
  keep(memory);
  return kSuccess;
}

Result free_memory(const char* symbol, Address address, bool (*wanted)(Kind)) {
  if (address == 0) {
    return kSuccess;
  }
  const SharedMemory memory = find_memory(address);
  if (memory == nullptr || memory->start != address || !wanted(memory->kind)) {
    const char* const what = memory == nullptr          ? "nothing that was allocated"
                             : memory->start != address ? "in the middle of an allocation"
                                                        : name_of(memory->kind);
    violation(symbol, text("the address ", as_pointer(address), " is ", what));
    return kInvalidValue;
  }
  if (is_copied(*memory)) {
    violation(symbol, text(name_of(memory->kind), " is freed while ", memory->queued, " of its copies are queued"));
  }
  const auto registered = state().file_buffers.lower_bound(memory->start);
  if (registered != state().file_buffers.end() && registered->first < memory->start + memory->nbytes) {
    violation(symbol, text(name_of(memory->kind), " is freed while it is registered with cuFile"));
  }
  forget(memory);
  return kSuccess;
}

Result unregister_host(const char* symbol, Address address) {
  const SharedMemory memory = find_memory(address);
  if (memory == nullptr || memory->start != address || memory->kind != Kind::kRegistered) {
    violation(symbol, text("the address ", as_pointer(address), " was not registered"));
    return kNotRegistered;
  }
  if (is_copied(*memory)) {
    violation(symbol, text("registered memory is unregistered while ", memory->queued, " of its copies are queued"));
  }
  if (!is_mapped(memory->bytes, memory->nbytes)) {
    violation(symbol, "registered memory was unmapped before it is unregistered");
  }
  forget(memory);
  return kSuccess;
}

SharedMemory find_memory(Address address) {
  const auto& known = state().memory;
  const auto after = known.upper_bound(address);
  if (after == known.begin()) {
    return nullptr;
  }
  const SharedMemory& memory = std::prev(after)->second;
  return address < memory->start + memory->nbytes ? memory : nullptr;
}

bool is_mapped(const std::byte* data, std::size_t nbytes) {
  const Address first = as_address(data) / kPage * kPage;
  const std::size_t span = round_up(as_address(data) + nbytes, kPage) - first;
  std::vector<unsigned char> pages(span / kPage);
  return mincore(as_pointer(first), span, pages.data()) == 0;
}

}  // namespace sim
