// All that the simulator knows, behind one lock: bytes are moved without it.
//
// Made by the first call, and never destroyed: threads may still work while the process ends.
#pragma once

#include <unistd.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "memory.h"
#include "settings.h"
#include "sim.h"
#include "stream.h"
#include "types.h"

namespace sim {

// The primary context of a device, the only kind that there is here.
struct Context {
  int device = 0;
  unsigned retained = 0;
  Result lost = kSuccess;               // what every call gives since an asynchronous failure
  std::shared_ptr<Stream> null_stream;  // made with the context

  Handle handle() const { return reinterpret_cast<Handle>(std::uintptr_t{0xC0000} + 0x10 * device); }
};

// When the link is free again, on the clock of now_ns().
struct Link {
  std::int64_t busy_until = 0;
};

struct Device {
  DeviceMemory memory;
  std::size_t used = 0;
  Context context;
  std::array<Link, 2> links;  // to the device, to the host
};

// A file that cuFile knows.
struct File {
  File(int the_callers, int our_own) : direct(the_callers), buffered(our_own) {}
  ~File() { close(buffered); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const int direct;
  const int buffered;  // for what O_DIRECT can't do
};

struct State {
  State();

  std::mutex mutex;
  Settings settings;
  sim_counters counters{};
  std::deque<std::string> violations;
  std::array<Device, kMostDevices> devices;
  std::map<Address, SharedMemory> memory;  // by its start
  std::map<Handle, std::shared_ptr<Stream>> streams;
  std::set<Stream*> running;  // the null streams and those that were destroyed while they had work included
  std::map<Handle, std::shared_ptr<Event>> events;
  std::map<Handle, std::shared_ptr<File>> files;
  std::map<Address, std::size_t> file_buffers;
  bool hold = false;
  std::uint64_t next_handle = 1;
  std::uint64_t copies_at_once = 0;

  Handle new_handle() { return reinterpret_cast<Handle>(std::uintptr_t{0x51000000} + 0x10 * next_handle++); }
};

SIM_EXPORT State& state();

// All below: with the state locked.

// Something was done wrong in this call: "cuMemFree_v2: device memory is freed while ...".
SIM_EXPORT void violation(const char* symbol, const std::string& what);

// The context that is current on the calling thread. Null is a violation when a symbol needs it; a lost one is not.
Context* find_current();
SIM_EXPORT Result current_context(const char* symbol, Context*& context);
std::vector<Handle>& context_stack();  // of this thread, the current one last
Context* find_context(Handle handle);  // null when it was not made

// 0: the null stream of the context. A stream of another context is a violation.
Result find_stream(const char* symbol, Handle handle, Context& context, std::shared_ptr<Stream>& stream);

}  // namespace sim
