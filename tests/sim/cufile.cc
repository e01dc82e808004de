// libcufile.so.0: reads and writes between files and the memory of simulated devices.
//
// Whole 4 KiB blocks go by the caller's descriptor, the rest by one of our own without O_DIRECT, as the real one's
// edges go through memory of its own. Everything that both libraries share is in libcuda.so.1.
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "calls.h"
#include "copies.h"
#include "state.h"

using sim::Address;
using sim::Handle;
using sim::Result;

namespace {

struct Status {  // CUfileError_t; as C has it, for functions of C return it
  int file;
  Result driver;
};

struct Description {  // CUfileDescr_t
  int type;
  union {
    int fd;
    void* handle;
  };
  const void* operations;
};

enum FileError {
  kDriverNotInitialized = 5001,
  kDriverError = 5011,
  kPointerInvalid = 5012,
  kContextMismatch = 5015,
  kInvalidMappingSize = 5016,
  kInvalidFileType = 5018,
  kInvalidOpenFlag = 5019,
  kDirectNotSet = 5020,
  kInvalidValue = 5022,
  kAlreadyRegistered = 5023,
  kNotRegistered = 5024,
  kHandleNotRegistered = 5027,
  kHandleAlreadyRegistered = 5028,
  kNoNewDescriptor = 5031,
};

constexpr std::size_t kBlock = 4096;

int& driver_opened() {
  static int count = 0;  // with the state locked
  return count;
}

// An injected error: one of cuFile's own, or one of the driver's.
Status as_status(Result error) {
  return error >= 5000 ? Status{error, 0} : Status{error == 0 ? 0 : kDriverError, error};
}

#define SIM_FILE_ENTER(symbol)               \
  static sim::Symbol here(#symbol);          \
  const sim::Entry entry = sim::enter(here); \
  if (entry.now != sim::kSuccess) {          \
    return as_status(entry.now);             \
  }                                          \
  sim::State& all = sim::state();            \
  const std::lock_guard lock(all.mutex)

// One transfer by the system, as far as it gets.
ssize_t transfer_some(int fd, std::byte* bytes, std::size_t nbytes, off_t offset, bool write) {
  return write ? pwrite(fd, bytes, nbytes, offset) : pread(fd, bytes, nbytes, offset);
}

bool is_whole(const std::byte* bytes, off_t offset) {
  return sim::as_address(bytes) % kBlock == 0 && static_cast<std::size_t>(offset) % kBlock == 0;
}

// To the end of the file, or all of it.
ssize_t transfer(const sim::File& file, std::byte* bytes, std::size_t nbytes, off_t offset, bool write) {
  std::size_t done = 0;
  while (done < nbytes) {
    const off_t at = offset + static_cast<off_t>(done);
    const std::size_t left = nbytes - done;
    const bool direct = is_whole(bytes + done, at) && left >= kBlock;
    const ssize_t moved = direct ? transfer_some(file.direct, bytes + done, left / kBlock * kBlock, at, write)
                                 : transfer_some(file.buffered, bytes + done, left, at, write);
    if (moved < 0 && errno != EINTR) {
      return -1;
    }
    if (moved == 0) {
      break;
    }
    done += moved > 0 ? static_cast<std::size_t>(moved) : 0;
  }
  return static_cast<ssize_t>(done);
}

struct Transfer {
  std::shared_ptr<sim::File> file;
  sim::SharedMemory memory;
  std::byte* bytes = nullptr;
  std::size_t nbytes = 0;
  std::int64_t end = 0;
};

// Checks everything; gives a negative error, or 0.
ssize_t prepare(const char* symbol, Handle handle, Address base, Address address, std::size_t nbytes, bool write,
                Transfer& found) {
  sim::State& all = sim::state();
  const std::lock_guard lock(all.mutex);
  const auto file = all.files.find(handle);
  if (file == all.files.end()) {
    sim::violation(symbol, sim::text("file handle ", handle, " is not registered"));
    return -kHandleNotRegistered;
  }
  sim::Context* context = nullptr;
  if (sim::current_context(symbol, context) != sim::kSuccess) {
    return -kContextMismatch;
  }
  if (sim::find_on_device(symbol, "buffer", address, nbytes, *context, found.memory) != sim::kSuccess) {
    found.memory.reset();  // with the state locked
    return -kPointerInvalid;
  }
  for (const auto& [start, size] : all.file_buffers) {
    if (address >= start && address < start + size && base != start) {
      sim::violation(symbol, "registered memory is not named by the address that it was registered with");
    }
  }
  const std::uint64_t most = all.settings.file_most_bytes;
  found.file = file->second;
  found.bytes = found.memory->bytes + (address - found.memory->start);
  found.nbytes = most == 0 ? nbytes : std::min<std::size_t>(nbytes, most);
  ++found.memory->queued;
  const auto direction = write ? sim::Direction::kToHost : sim::Direction::kToDevice;
  found.end = sim::reserve_link(context->device, direction, found.nbytes, sim::now_ns());
  return 0;
}

void finish(Transfer& made, ssize_t moved, bool write) {
  sim_counters& counters = sim::state().counters;
  const std::lock_guard lock(sim::state().mutex);
  --made.memory->queued;
  made.memory.reset();  // with the state locked
  ++(write ? counters.file_writes : counters.file_reads);
  (write ? counters.file_bytes_written : counters.file_bytes_read) += moved > 0 ? moved : 0;
}

ssize_t run(sim::Symbol& symbol, Handle handle, const void* buffer, std::size_t nbytes, off_t offset,
            off_t buffer_offset, bool write) {
  const sim::Entry entry = sim::enter(symbol);
  if (entry.now != sim::kSuccess) {
    errno = entry.now;
    return entry.now >= 5000 ? -entry.now : -1;
  }
  Transfer wanted;
  const Address base = sim::as_address(buffer);
  const Address address = base + static_cast<Address>(buffer_offset);
  const ssize_t refused = prepare(symbol.name, handle, base, address, nbytes, write, wanted);
  if (refused != 0) {
    return refused;
  }
  const ssize_t moved = transfer(*wanted.file, wanted.bytes, wanted.nbytes, offset, write);
  const int error = errno;
  sim::sleep_until(wanted.end);
  finish(wanted, moved, write);
  errno = error;
  return moved;
}

}  // namespace

extern "C" {

SIM_EXPORT Status cuFileDriverOpen() {
  SIM_FILE_ENTER(cuFileDriverOpen);
  ++driver_opened();
  if (all.settings.file_closes_stdin != 0) {
    close(0);  // as versions of the real one do where nvidia-fs has no device nodes
  }
  return {};
}

SIM_EXPORT Status cuFileDriverClose_v2() {
  SIM_FILE_ENTER(cuFileDriverClose_v2);
  if (driver_opened() == 0) {
    return {kDriverNotInitialized, 0};
  }
  if (--driver_opened() == 0 && all.files.size() + all.file_buffers.size() > 0) {
    sim::violation(here.name, sim::text("cuFile is closed with ", all.files.size(), " handles and ",
                                        all.file_buffers.size(), " buffers registered"));
  }
  return {};
}

SIM_EXPORT Status cuFileHandleRegister(Handle* handle, Description* description) {
  SIM_FILE_ENTER(cuFileHandleRegister);
  if (description == nullptr || description->type != 1) {  // CU_FILE_HANDLE_TYPE_OPAQUE_FD
    return {kInvalidFileType, 0};
  }
  const int flags = fcntl(description->fd, F_GETFL);
  if (flags < 0) {
    return {kInvalidValue, 0};
  }
  constexpr int kRefused = O_APPEND | O_NONBLOCK | O_DIRECTORY | O_NOFOLLOW | O_TMPFILE;
  if ((flags & kRefused) != 0) {
    return {kInvalidOpenFlag, 0};
  }
  if ((flags & O_DIRECT) == 0 && all.settings.file_buffered == 0) {
    return {kDirectNotSet, 0};
  }
  for (const auto& [known, file] : all.files) {
    if (file->direct == description->fd) {
      return {kHandleAlreadyRegistered, 0};
    }
  }
  // By its name, as NVIDIA's does.
  char path[PATH_MAX + 1] = {};
  const std::string link = sim::text("/proc/self/fd/", description->fd);
  const bool named = readlink(link.c_str(), path, PATH_MAX) > 0;
  const int buffered = named ? open(path, (flags & O_ACCMODE) | O_CLOEXEC) : -1;
  if (buffered < 0) {
    return {kNoNewDescriptor, 0};
  }
  *handle = all.new_handle();
  all.files[*handle] = std::make_shared<sim::File>(description->fd, buffered);
  return {};
}

SIM_EXPORT void cuFileHandleDeregister(Handle handle) {
  static sim::Symbol here("cuFileHandleDeregister");
  if (sim::enter(here).now != sim::kSuccess) {
    return;
  }
  sim::State& all = sim::state();
  const std::lock_guard lock(all.mutex);
  const auto found = all.files.find(handle);
  if (found == all.files.end()) {
    sim::violation(here.name, sim::text("file handle ", handle, " is not registered"));
    return;
  }
  if (fcntl(found->second->direct, F_GETFD) < 0) {
    sim::violation(here.name, "the descriptor was closed before its handle is deregistered");
  }
  if (found->second.use_count() > 1) {
    sim::violation(here.name, "the handle is deregistered while it is read from or written to");
  }
  all.files.erase(found);
}

SIM_EXPORT Status cuFileBufRegister(const void* data, std::size_t nbytes, int) {
  SIM_FILE_ENTER(cuFileBufRegister);
  sim::Context* context = nullptr;
  const Result result = sim::current_context(here.name, context);
  if (result != sim::kSuccess) {
    return {kContextMismatch, result};
  }
  sim::SharedMemory memory;
  const Address start = sim::as_address(data);
  if (sim::find_on_device(here.name, "buffer", start, nbytes, *context, memory) != sim::kSuccess) {
    return {kInvalidMappingSize, 0};
  }
  return all.file_buffers.emplace(start, nbytes).second ? Status{} : Status{kAlreadyRegistered, 0};
}

SIM_EXPORT Status cuFileBufDeregister(const void* data) {
  SIM_FILE_ENTER(cuFileBufDeregister);
  if (all.file_buffers.erase(sim::as_address(data)) == 0) {
    sim::violation(here.name, sim::text("buffer ", data, " is not registered"));
    return {kNotRegistered, 0};
  }
  return {};
}

SIM_EXPORT ssize_t cuFileRead(Handle handle, void* buffer, std::size_t nbytes, off_t offset, off_t buffer_offset) {
  static sim::Symbol here("cuFileRead");
  return run(here, handle, buffer, nbytes, offset, buffer_offset, false);
}

SIM_EXPORT ssize_t cuFileWrite(Handle handle, const void* buffer, std::size_t nbytes, off_t offset,
                               off_t buffer_offset) {
  static sim::Symbol here("cuFileWrite");
  return run(here, handle, buffer, nbytes, offset, buffer_offset, true);
}

SIM_EXPORT Status cuFileGetVersion(int* version) {
  static sim::Symbol here("cuFileGetVersion");
  *version = 1140;
  return as_status(sim::enter_uninitialized(here).now);
}

}  // extern "C"
