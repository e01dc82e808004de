// Copies: what is checked when one is asked for, and how its bytes are moved when its time has come.
#pragma once

#include "state.h"
#include "types.h"

namespace sim {

enum class Direction { kToDevice, kToHost, kWithinDevice };

struct CopyRequest {
  const char* symbol = nullptr;
  Direction direction = Direction::kToDevice;
  Address to = 0;
  Address from = 0;
  std::size_t nbytes = 0;
  Handle stream = nullptr;
  Result failure = kSuccess;  // when it is made
  bool wait = false;          // until it is over
};

// Of the driver's copying functions: checks everything, queues the copy. Without the lock.
Result copy(const CopyRequest& request);

Result fill(const char* symbol, Address to, unsigned char value, std::size_t nbytes, Handle stream, bool wait);

// The memory of these bytes, which have to lie in one allocation on the context's device. With the lock.
SIM_EXPORT Result find_on_device(const char* symbol, const char* what, Address address, std::size_t nbytes,
                                 const Context& context, SharedMemory& memory);

// Takes the link for so many bytes: from when to when. With the lock.
SIM_EXPORT std::int64_t reserve_link(int device, Direction direction, std::size_t nbytes, std::int64_t begin);

}  // namespace sim
