#include "device.h"

#include <nanobind/stl/tuple.h>

#include "memory.h"

namespace penstock::python {
namespace {

using Given = std::tuple<std::uintptr_t, nb::object, int, std::optional<std::uintptr_t>>;

// Let go of on whatever thread has it last.
std::shared_ptr<nb::object> hold(nb::object object) {
  return {new nb::object(std::move(object)), [](const nb::object* held) { let_go_with_gil([held] { delete held; }); }};
}

AllocatedMemory allocated(Given given) {
  auto& [address, owner, device, stream] = given;
  AllocatedMemory memory{.data = reinterpret_cast<std::byte*>(address), .owner = hold(std::move(owner)), .stream = {}};
  if (stream) memory.stream = DeviceStream{device, reinterpret_cast<void*>(*stream)};
  return memory;
}

// Memory of the engine's own, for devices that share theirs with the host.
Memory allocate_on_device(int device, std::uint64_t nbytes, std::pair<std::int32_t, std::int32_t> place) {
  GilRelease release;
  AllocatedMemory memory = device_allocator(device)(nbytes);
  return {std::move(memory.owner), memory.data, nbytes, {place.first, place.second}};
}

std::optional<int> device_of_address(std::uintptr_t address) {
  return device_of(reinterpret_cast<const void*>(address));
}

void copy_bytes_to_host(std::uintptr_t to, std::uintptr_t device_address, std::uint64_t nbytes) {
  copy_to_host(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(device_address), nbytes);
}

void copy_bytes_to_device(std::uintptr_t device_address, std::uintptr_t from, std::uint64_t nbytes) {
  copy_to_device(reinterpret_cast<void*>(device_address), reinterpret_cast<const void*>(from), nbytes);
}

nb::list devices() {
  std::vector<DeviceInfo> found;
  {
    GilRelease release;
    found = list_devices();
  }
  nb::list list;
  for (const DeviceInfo& device : found) {
    nb::dict fields;
    fields["number"] = device.number;
    fields["name"] = device.name;
    fields["total_memory"] = device.total_memory;
    fields["numa_node"] = device.numa_node;
    fields["unified"] = device.unified;
    list.append(fields);
  }
  return list;
}

}  // namespace

PythonAllocator::PythonAllocator(nb::object allocate, std::pair<std::int32_t, std::int32_t> device)
    : allocate_(hold(std::move(allocate))), device_{device.first, device.second} {}

Allocator PythonAllocator::function(const std::shared_ptr<Callbacks>& callbacks) const {
  return [callbacks, allocate = allocate_](std::uint64_t nbytes) {
    AllocatedMemory memory;
    callbacks->guard(ErrorKind::kMemory, [&] { memory = allocated(nb::cast<Given>((*allocate)(nbytes))); })();
    return memory;
  };
}

void bind_device(nb::module_& module) {
  nb::class_<PythonAllocator>(module, "Allocator", "Where a load's tensors are to be.")
      .def(nb::init<nb::object, std::pair<std::int32_t, std::int32_t>>(), nb::arg("allocate"), nb::arg("device"),
           nb::sig("def __init__(self, allocate: collections.abc.Callable[[int], tuple[int, typing.Any, int, int | "
                   "None]], device: tuple[int, int]) -> None"),
           "allocate: takes a number of bytes and gives an address, what keeps the memory, the device's number as the\n"
           "driver counts, and the address of the stream whose queued work may still use it.\n"
           "device: its type and number as DLPack counts.");
  module.def("allocate_on_device", &allocate_on_device, nb::arg("device"), nb::arg("nbytes"), nb::arg("place"),
             "Memory of the driver's; of one that shares its memory with the host, memory that both can use.");
  module.def("device_of", &device_of_address, nb::arg("address"),
             "The number of the device whose memory this is, as its driver counts; None for memory of the host.");
  module.def("copy_to_host", &copy_bytes_to_host, nb::arg("to"), nb::arg("device_address"), nb::arg("nbytes"),
             nb::call_guard<GilRelease>(), "Copies between addresses, by pinned memory, and waits.");
  module.def("copy_to_device", &copy_bytes_to_device, nb::arg("device_address"), nb::arg("source"), nb::arg("nbytes"),
             nb::call_guard<GilRelease>(), "Copies between addresses, by pinned memory, and waits.");
  module.def("list_devices", &devices, nb::sig("def list_devices() -> list[dict[str, typing.Any]]"),
             "The devices that the engine can use.");
}

}  // namespace penstock::python
