#include "copies.h"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sim {
namespace {

struct Copy {
  CopyRequest request;
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  SharedMemory to;    // null: pageable
  SharedMemory from;  // null: pageable
  std::vector<std::byte> staged;
  bool checked = false;  // whether the source has to be what it was
  std::uint64_t fingerprint = 0;

  std::byte* destination() const { return reach(to, request.to); }
  const std::byte* source() const { return staged.empty() ? reach(from, request.from) : staged.data(); }

 private:
  static std::byte* reach(const SharedMemory& memory, Address address) {
    return memory == nullptr ? as_pointer(address) : memory->bytes + (address - memory->start);
  }
};

// Not instrumented: it reads bytes that a mistaken caller may be writing, and says so itself.
__attribute__((no_sanitize("thread"))) std::uint64_t fingerprint_of(const std::byte* bytes, std::size_t nbytes) {
  constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15u;
  std::uint64_t lanes[4] = {nbytes, 1, 2, 3};
  std::size_t at = 0;
  for (; at + 32 <= nbytes; at += 32) {
    for (int lane = 0; lane < 4; ++lane) {
      std::uint64_t word = 0;
      __builtin_memcpy(&word, bytes + at + 8 * lane, 8);
      lanes[lane] = (lanes[lane] ^ word) * kFactor;
    }
  }
  for (; at < nbytes; ++at) {
    lanes[0] = (lanes[0] ^ static_cast<std::uint64_t>(bytes[at])) * kFactor;
  }
  return lanes[0] ^ (lanes[1] >> 1) ^ (lanes[2] >> 2) ^ (lanes[3] >> 3);
}

// Reads memory that may be gone by now. Not by the C library: sanitizers would report the race that we report.
bool read_host(std::byte* to, const std::byte* from, std::size_t nbytes) {
  while (nbytes > 0) {
    const iovec local = {to, nbytes};
    const iovec remote = {const_cast<std::byte*>(from), nbytes};
    const long moved = syscall(SYS_process_vm_readv, getpid(), &local, 1, &remote, 1, 0);
    if (moved < 0 && (errno == EPERM || errno == ENOSYS)) {
      std::memcpy(to, from, nbytes);
      return true;
    }
    if (moved <= 0) {
      return false;
    }
    to += moved;
    from += moved;
    nbytes -= static_cast<std::size_t>(moved);
  }
  return true;
}

// What was wrong, if anything.
const char* move_bytes(const Copy& copy) {
  const std::size_t nbytes = copy.request.nbytes;
  if (!copy.checked) {
    if (copy.request.direction == Direction::kToHost && !is_mapped(copy.destination(), nbytes)) {
      return "the destination was unmapped while its copy was queued";
    }
    std::memmove(copy.destination(), copy.source(), nbytes);
    return nullptr;
  }
  if (!read_host(copy.destination(), copy.source(), nbytes)) {
    return "the source was unmapped while its copy was queued";
  }
  const bool same = fingerprint_of(copy.destination(), nbytes) == copy.fingerprint;
  return same ? nullptr : "the source changed while its copy was queued";
}

void count(const Copy& copy) {
  sim_counters& counters = state().counters;
  switch (copy.request.direction) {
    case Direction::kToDevice:
      ++counters.copies_to_device;
      counters.bytes_to_device += copy.request.nbytes;
      break;
    case Direction::kToHost:
      ++counters.copies_to_host;
      counters.bytes_to_host += copy.request.nbytes;
      break;
    case Direction::kWithinDevice:
      ++counters.copies_within_device;
      counters.bytes_within_device += copy.request.nbytes;
      break;
  }
}

// On the stream's thread, without the lock.
std::int64_t make(const Copy& copy, std::int64_t begin) {
  State& all = state();
  std::int64_t end = begin;
  {
    const std::lock_guard lock(all.mutex);
    all.counters.copies_at_once_peak = std::max(all.counters.copies_at_once_peak, ++all.copies_at_once);
    if (copy.context->lost != kSuccess || copy.request.failure != kSuccess) {
      return end;
    }
    end = reserve_link(copy.context->device, copy.request.direction, copy.request.nbytes, begin);
  }
  // A copy that is watched takes its bytes as late as it may: mistakes show.
  if (copy.checked) {
    sleep_until(end);
  }
  const char* const wrong = move_bytes(copy);
  sleep_until(end);
  const std::lock_guard lock(all.mutex);
  if (wrong != nullptr) {
    violation(copy.request.symbol, text(wrong, " (", copy.request.nbytes, " bytes from ", as_pointer(copy.request.from),
                                        ", device ", copy.context->device, ")"));
  }
  count(copy);
  return end;
}

void finish(const Copy& copy) {
  State& all = state();
  --all.copies_at_once;
  --all.counters.copies_queued;
  if (copy.request.failure != kSuccess && copy.context->lost == kSuccess) {
    copy.context->lost = copy.request.failure;
  }
  if (copy.to != nullptr) {
    --copy.to->queued;
    --copy.to->queued_writes;
  }
  if (copy.from != nullptr) {
    --copy.from->queued;
  }
}

// Memory of the host as the source or destination: null when it is pageable.
Result find_on_host(const CopyRequest& request, const char* what, Address address, SharedMemory& memory) {
  memory = find_memory(address);
  if (memory == nullptr) {
    State& all = state();
    ++all.counters.pageable_copies;
    all.counters.pageable_bytes += request.nbytes;
    if (all.settings.refuse_pageable != 0) {
      violation(request.symbol, text("the ", what, " is pageable memory"));
      return kInvalidValue;
    }
    return kSuccess;
  }
  if (memory->kind == Kind::kDevice) {
    violation(request.symbol, text("the ", what, " is device memory, not the host's"));
    return kInvalidValue;
  }
  if (request.nbytes > memory->start + memory->nbytes - address) {
    violation(request.symbol, text("the ", what, " runs past the end of ", name_of(memory->kind)));
    return kInvalidValue;
  }
  return kSuccess;
}

Result find_both(Copy& copy) {
  const CopyRequest& request = copy.request;
  const Context& context = *copy.context;
  if (request.direction == Direction::kToDevice) {
    const Result result = find_on_device(request.symbol, "destination", request.to, request.nbytes, context, copy.to);
    return result != kSuccess ? result : find_on_host(request, "source", request.from, copy.from);
  }
  const Result result = find_on_device(request.symbol, "source", request.from, request.nbytes, context, copy.from);
  if (result != kSuccess) {
    return result;
  }
  return request.direction == Direction::kToHost
             ? find_on_host(request, "destination", request.to, copy.to)
             : find_on_device(request.symbol, "destination", request.to, request.nbytes, context, copy.to);
}

Result prepare(Copy& copy) {
  const CopyRequest& request = copy.request;
  Result result = current_context(request.symbol, copy.context);
  if (result == kSuccess) {
    result = find_stream(request.symbol, request.stream, *copy.context, copy.stream);
  }
  if (result == kSuccess && request.nbytes > 0) {
    result = find_both(copy);
  }
  return result;
}

// The copy is certain: what it uses has to stay.
void take_hold(Copy& copy) {
  ++state().counters.copies_queued;
  if (copy.to != nullptr) {
    ++copy.to->queued;
    ++copy.to->queued_writes;
  }
  if (copy.from != nullptr) {
    ++copy.from->queued;
  }
  // Work that is queued may rightly write to a source, so that its bytes are not known yet.
  copy.checked = state().settings.check != 0 && copy.request.direction == Direction::kToDevice &&
                 copy.from != nullptr && copy.from->queued_writes == 0;
}

}  // namespace

std::int64_t reserve_link(int device, Direction direction, std::size_t nbytes, std::int64_t begin) {
  State& all = state();
  const bool to_device = direction == Direction::kToDevice;
  const std::uint64_t rate = to_device ? all.settings.link_to_device : all.settings.link_to_host;
  if (rate == 0 || direction == Direction::kWithinDevice) {
    return begin;
  }
  const auto duration = static_cast<std::int64_t>(static_cast<double>(nbytes) * 1e9 / static_cast<double>(rate));
  Link& link = all.devices[device].links[to_device ? 0 : 1];
  link.busy_until = std::max(begin, link.busy_until) + duration;
  (to_device ? all.counters.link_ns_to_device : all.counters.link_ns_to_host) += duration;
  return link.busy_until;
}

Result find_on_device(const char* symbol, const char* what, Address address, std::size_t nbytes, const Context& context,
                      SharedMemory& memory) {
  memory = find_memory(address);
  if (memory == nullptr || memory->of_host()) {
    violation(symbol,
              text("the ", what, " ", as_pointer(address), " is ",
                   memory == nullptr ? "no memory of the driver's" : name_of(memory->kind), ", not device memory"));
    return kInvalidValue;
  }
  if (memory->kind == Kind::kDevice && memory->device != context.device) {
    violation(symbol, text("the ", what, " is memory of device ", memory->device, ", the context is of device ",
                           context.device));
    return kInvalidValue;
  }
  if (nbytes > memory->start + memory->nbytes - address) {
    violation(symbol, text("the ", what, " runs past the end of ", name_of(memory->kind)));
    return kInvalidValue;
  }
  return kSuccess;
}

Result copy(const CopyRequest& request) {
  auto copy = std::make_shared<Copy>();
  copy->request = request;
  {
    const std::lock_guard lock(state().mutex);
    const Result result = prepare(*copy);
    if (result != kSuccess || request.nbytes == 0) {
      copy.reset();  // with the lock, for it may be the last that keeps memory
      return result;
    }
    take_hold(*copy);
  }
  // As the driver does: pageable memory is free again when the call is over.
  const bool pageable_source = copy->from == nullptr;
  if (pageable_source) {
    copy->staged.assign(copy->source(), copy->source() + request.nbytes);
  } else if (copy->checked) {
    copy->fingerprint = fingerprint_of(copy->source(), request.nbytes);
  }
  std::unique_lock lock(state().mutex);
  enqueue(copy->stream,
          {.make = [copy](std::int64_t begin) { return make(*copy, begin); }, .finish = [copy] { finish(*copy); }});
  const bool wait = request.wait || copy->to == nullptr;
  const Context& context = *copy->context;
  const Progress over = {copy->stream, copy->stream->queued};
  copy.reset();
  if (!wait) {
    return kSuccess;
  }
  wait_for(lock, over);
  return context.lost;
}

Result fill(const char* symbol, Address to, unsigned char value, std::size_t nbytes, Handle handle, bool wait) {
  std::unique_lock lock(state().mutex);
  Context* context = nullptr;
  std::shared_ptr<Stream> stream;
  SharedMemory memory;
  Result result = current_context(symbol, context);
  if (result == kSuccess) {
    result = find_stream(symbol, handle, *context, stream);
  }
  if (result == kSuccess && nbytes > 0) {
    result = find_on_device(symbol, "destination", to, nbytes, *context, memory);
  }
  if (result != kSuccess || nbytes == 0) {
    return result;
  }
  ++memory->queued;
  ++memory->queued_writes;
  std::byte* const bytes = memory->bytes + (to - memory->start);
  const auto make_fill = [=](std::int64_t begin) {
    std::memset(bytes, value, nbytes);
    return begin;
  };
  enqueue(stream, {.make = make_fill, .finish = [memory] {
                     --memory->queued;
                     --memory->queued_writes;
                   }});
  if (wait) {
    wait_for(lock, {stream, stream->queued});
  }
  return context->lost;
}

}  // namespace sim
