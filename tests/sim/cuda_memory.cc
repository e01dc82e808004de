// libcuda.so.1: memory, what the driver says about an address, and copies.
#include <cstring>

#include "calls.h"
#include "copies.h"
#include "state.h"

using sim::Address;
using sim::Context;
using sim::Handle;
using sim::Kind;
using sim::Result;

namespace {

// In a context that is current on this thread, with the state locked.
template <typename Action>
Result in_context(const char* symbol, Action action) {
  const std::lock_guard lock(sim::state().mutex);
  Context* context = nullptr;
  const Result result = sim::current_context(symbol, context);
  return result == sim::kSuccess ? action(*context) : result;
}

// The same for what lets something go: it goes from the books of a lost context too, which then gives its error.
template <typename Action>
Result ending_in_context(const char* symbol, Action action) {
  const std::lock_guard lock(sim::state().mutex);
  Context* context = nullptr;
  const Result result = sim::current_context(symbol, context);
  if (context == nullptr) {
    return result;
  }
  const Result ended = action();
  return result == sim::kSuccess ? ended : result;
}

template <typename Value>
Result give(void* data, Value value) {
  std::memcpy(data, &value, sizeof value);
  return sim::kSuccess;
}

// With the state locked.
Result describe(void* data, int attribute, Address address, const sim::Memory& memory) {
  const Address host = memory.kind == Kind::kDevice ? 0 : address;
  switch (attribute) {
    case 1:  // CONTEXT
      return give(data, sim::state().devices[memory.device].context.handle());
    case 2:  // MEMORY_TYPE
      return give(data, memory.of_host() ? 1u : 2u);
    case 3:  // DEVICE_POINTER
      return give(data, address);
    case 4:  // HOST_POINTER
      return host == 0 ? sim::kInvalidValue : give(data, host);
    case 6:   // SYNC_MEMOPS
    case 10:  // IS_LEGACY_CUDA_IPC_CAPABLE
      return give(data, 0);
    case 7:  // BUFFER_ID
      return give(data, static_cast<unsigned long long>(memory.start));
    case 8:  // IS_MANAGED
      return give(data, static_cast<unsigned char>(memory.kind == Kind::kManaged));
    case 9:  // DEVICE_ORDINAL
      return give(data, memory.device);
    case 11:  // RANGE_START_ADDR
    case 19:  // MAPPING_BASE_ADDR
      return give(data, memory.start);
    case 12:  // RANGE_SIZE
    case 18:  // MAPPING_SIZE
      return give(data, memory.nbytes);
    case 13:  // MAPPED
      return give(data, static_cast<unsigned char>(1));
    case 15:  // IS_GPU_DIRECT_RDMA_CAPABLE
      return give(data, static_cast<unsigned char>(memory.kind == Kind::kDevice));
    default:
      return sim::kInvalidValue;
  }
}

std::size_t size_of_attribute(int attribute) {
  switch (attribute) {
    case 2:
    case 9:
      return 4;
    case 8:
    case 13:
    case 15:
      return 1;
    default:
      return 8;
  }
}

bool is_for_device(Kind kind) {
  return kind == Kind::kDevice || kind == Kind::kManaged;
}
bool is_pinned(Kind kind) {
  return kind == Kind::kPinned;
}

Result copy(const sim::Symbol& symbol, const sim::Entry& entry, sim::Direction direction, Address to, Address from,
            std::size_t nbytes, Handle stream, bool wait) {
  return sim::copy({.symbol = symbol.name,
                    .direction = direction,
                    .to = to,
                    .from = from,
                    .nbytes = nbytes,
                    .stream = stream,
                    .failure = entry.later,
                    .wait = wait});
}

}  // namespace

extern "C" {

SIM_EXPORT Result cuMemAlloc_v2(Address* address, std::size_t nbytes) {
  SIM_ENTER(cuMemAlloc_v2);
  return in_context(here.name,
                    [&](Context& context) { return sim::allocate_device(context.device, nbytes, *address); });
}

SIM_EXPORT Result cuMemAllocManaged(Address* address, std::size_t nbytes, unsigned) {
  SIM_ENTER(cuMemAllocManaged);
  return in_context(here.name,
                    [&](Context& context) { return sim::allocate_managed(context.device, nbytes, *address); });
}

SIM_EXPORT Result cuMemFree_v2(Address address) {
  SIM_ENTER(cuMemFree_v2);
  return ending_in_context(here.name, [&] { return sim::free_memory(here.name, address, is_for_device); });
}

SIM_EXPORT Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  SIM_ENTER(cuMemGetInfo_v2);
  return in_context(here.name, [&](Context& context) {
    const std::size_t used = sim::state().devices[context.device].used;
    *total = sim::state().settings.memory;
    *free = *total > used ? *total - used : 0;
    return sim::kSuccess;
  });
}

SIM_EXPORT Result cuMemHostAlloc(void** data, std::size_t nbytes, unsigned) {
  SIM_ENTER(cuMemHostAlloc);
  return in_context(here.name, [&](Context& context) { return sim::allocate_pinned(context.device, nbytes, *data); });
}

SIM_EXPORT Result cuMemFreeHost(void* data) {
  SIM_ENTER(cuMemFreeHost);
  return ending_in_context(here.name, [&] { return sim::free_memory(here.name, sim::as_address(data), is_pinned); });
}

SIM_EXPORT Result cuMemHostRegister_v2(void* data, std::size_t nbytes, unsigned) {
  SIM_ENTER(cuMemHostRegister_v2);
  return in_context(here.name, [&](Context& context) { return sim::register_host(context.device, data, nbytes); });
}

SIM_EXPORT Result cuMemHostUnregister(void* data) {
  SIM_ENTER(cuMemHostUnregister);
  return ending_in_context(here.name, [&] { return sim::unregister_host(here.name, sim::as_address(data)); });
}

SIM_EXPORT Result cuMemHostGetDevicePointer_v2(Address* address, void* data, unsigned) {
  SIM_ENTER(cuMemHostGetDevicePointer_v2);
  return in_context(here.name, [&](Context&) {
    const sim::SharedMemory memory = sim::find_memory(sim::as_address(data));
    if (memory == nullptr || memory->kind == Kind::kDevice) {
      return sim::kInvalidValue;
    }
    *address = sim::as_address(data);
    return sim::kSuccess;
  });
}

SIM_EXPORT Result cuMemGetAddressRange_v2(Address* start, std::size_t* nbytes, Address address) {
  SIM_ENTER(cuMemGetAddressRange_v2);
  const std::lock_guard lock(sim::state().mutex);
  const sim::SharedMemory memory = sim::find_memory(address);
  if (memory == nullptr) {
    return sim::kNotFound;
  }
  if (start != nullptr) {
    *start = memory->start;
  }
  if (nbytes != nullptr) {
    *nbytes = memory->nbytes;
  }
  return sim::kSuccess;
}

SIM_EXPORT Result cuPointerGetAttribute(void* data, int attribute, Address address) {
  SIM_ENTER(cuPointerGetAttribute);
  const std::lock_guard lock(sim::state().mutex);
  const sim::SharedMemory memory = sim::find_memory(address);
  return memory == nullptr ? sim::kInvalidValue : describe(data, attribute, address, *memory);
}

// What is not known is zero, and no error.
SIM_EXPORT Result cuPointerGetAttributes(unsigned count, int* attributes, void** data, Address address) {
  SIM_ENTER(cuPointerGetAttributes);
  const std::lock_guard lock(sim::state().mutex);
  const sim::SharedMemory memory = sim::find_memory(address);
  for (unsigned each = 0; each < count; ++each) {
    if (memory == nullptr || describe(data[each], attributes[each], address, *memory) != sim::kSuccess) {
      std::memset(data[each], 0, size_of_attribute(attributes[each]));
    }
  }
  return sim::kSuccess;
}

SIM_EXPORT Result cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t nbytes, Handle stream) {
  SIM_ENTER(cuMemcpyHtoDAsync_v2);
  return copy(here, entry, sim::Direction::kToDevice, to, sim::as_address(from), nbytes, stream, false);
}

SIM_EXPORT Result cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t nbytes, Handle stream) {
  SIM_ENTER(cuMemcpyDtoHAsync_v2);
  return copy(here, entry, sim::Direction::kToHost, sim::as_address(to), from, nbytes, stream, false);
}

SIM_EXPORT Result cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t nbytes, Handle stream) {
  SIM_ENTER(cuMemcpyDtoDAsync_v2);
  return copy(here, entry, sim::Direction::kWithinDevice, to, from, nbytes, stream, false);
}

SIM_EXPORT Result cuMemcpyHtoD_v2(Address to, const void* from, std::size_t nbytes) {
  SIM_ENTER(cuMemcpyHtoD_v2);
  return copy(here, entry, sim::Direction::kToDevice, to, sim::as_address(from), nbytes, nullptr, true);
}

SIM_EXPORT Result cuMemcpyDtoH_v2(void* to, Address from, std::size_t nbytes) {
  SIM_ENTER(cuMemcpyDtoH_v2);
  return copy(here, entry, sim::Direction::kToHost, sim::as_address(to), from, nbytes, nullptr, true);
}

SIM_EXPORT Result cuMemcpyDtoD_v2(Address to, Address from, std::size_t nbytes) {
  SIM_ENTER(cuMemcpyDtoD_v2);
  return copy(here, entry, sim::Direction::kWithinDevice, to, from, nbytes, nullptr, true);
}

SIM_EXPORT Result cuMemsetD8Async(Address to, unsigned char value, std::size_t nbytes, Handle stream) {
  SIM_ENTER(cuMemsetD8Async);
  return sim::fill(here.name, to, value, nbytes, stream, false);
}

SIM_EXPORT Result cuMemsetD8_v2(Address to, unsigned char value, std::size_t nbytes) {
  SIM_ENTER(cuMemsetD8_v2);
  return sim::fill(here.name, to, value, nbytes, nullptr, true);
}

}  // extern "C"
