// Memory that the driver knows: of a device, managed, or pinned. All of it is in one map by its address.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "types.h"

namespace sim {

enum class Kind { kDevice, kManaged, kPinned, kRegistered };

const char* name_of(Kind kind);

// The bytes of one device: a memfd that is mapped twice, so that the host can't touch them at the addresses that
// callers get, and the copying threads can at others.
class DeviceMemory {
 public:
  // Maps so much address space; pages come when they are written to.
  bool map(std::size_t nbytes);
  bool mapped() const { return shown_ != nullptr; }

  // The offset of so many bytes; nothing when there is no hole of that size.
  bool take(std::size_t nbytes, std::size_t& offset);
  void give_back(std::size_t offset, std::size_t nbytes);

  Address address(std::size_t offset) const { return as_address(shown_) + offset; }
  std::byte* bytes(std::size_t offset) const { return hidden_ + offset; }

 private:
  int fd_ = -1;
  std::byte* shown_ = nullptr;
  std::byte* hidden_ = nullptr;
  std::map<std::size_t, std::size_t> holes_;  // offset -> bytes
};

struct Memory {
  Memory(Kind its_kind, int its_device, std::size_t its_nbytes)
      : kind(its_kind), device(its_device), nbytes(its_nbytes) {}
  ~Memory();  // with the state locked: the last copy that uses it is over, or there was none
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  const Kind kind;
  const int device;  // whose context it was made in
  const std::size_t nbytes;
  Address start = 0;
  std::byte* bytes = nullptr;    // where the simulator reaches it
  unsigned queued = 0;           // copies that are yet to be made from or to it
  unsigned queued_writes = 0;    // of these, to it
  DeviceMemory* home = nullptr;  // of Kind::kDevice
  std::size_t offset = 0;

  bool of_host() const { return kind == Kind::kPinned || kind == Kind::kRegistered; }
};

using SharedMemory = std::shared_ptr<Memory>;

// All of these: with the state locked.
Result allocate_device(int device, std::size_t nbytes, Address& address);
Result allocate_managed(int device, std::size_t nbytes, Address& address);
Result allocate_pinned(int device, std::size_t nbytes, void*& data);
Result register_host(int device, void* data, std::size_t nbytes);

// Ends what begins at this address. Something else there, or a copy that still needs it, is a violation of `symbol`'s.
Result free_memory(const char* symbol, Address address, bool (*wanted)(Kind));
Result unregister_host(const char* symbol, Address address);

// What this address is in; null when the driver does not know it.
SIM_EXPORT SharedMemory find_memory(Address address);

// Whether all of these bytes are mapped in this process.
bool is_mapped(const std::byte* data, std::size_t nbytes);

}  // namespace sim
