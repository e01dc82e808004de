#include "memory.h"

#include "dlpack.h"

namespace penstock::python {
namespace {

// Giving less than this back to the system takes less time than handing the GIL over does.
constexpr std::size_t kReleaseGilFrom = 1 << 20;

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const Memory* memory = nb::inst_ptr<Memory>(self);
  if (!memory->device().is_host()) {
    PyErr_SetString(PyExc_BufferError, "the memory is on a device, where the host can't reach it");
    return -1;
  }
  return PyBuffer_FillInfo(view, self, memory->data(), static_cast<Py_ssize_t>(memory->size()), /*readonly=*/0, flags);
}

const PyType_Slot kBufferSlots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

std::shared_ptr<MemoryPool> create_pool(std::optional<std::uint64_t> max_kept_bytes, bool huge_pages) {
  MemoryPoolOptions options;
  if (max_kept_bytes) options.max_kept_bytes = *max_kept_bytes;
  options.huge_pages = huge_pages;
  return MemoryPool::create(options);
}

Memory take_memory(MemoryPool& pool, std::size_t nbytes) {
  std::shared_ptr<std::byte> block = pool.take(nbytes);
  std::byte* const data = block.get();
  return {std::move(block), data, nbytes};
}

void read_other(std::int64_t process, std::uint64_t address, std::uint64_t nbytes, std::uint64_t stride,
                std::uint64_t count, std::uintptr_t to) {
  read_process({process, address, nbytes, stride, count}, reinterpret_cast<void*>(to));
}

}  // namespace

Memory::~Memory() {
  if (owner_ == nullptr || size_ < kReleaseGilFrom) return;
  GilRelease release;
  owner_.reset();
}

void bind_memory(nb::module_& module) {
  nb::class_<Memory>(module, "Memory", nb::type_slots(kBufferSlots),
                     "A block of memory that loaded tensors point into; on the host a writable buffer.")
      .def("__len__", &Memory::size)
      .def_prop_ro("address", [](const Memory& memory) { return reinterpret_cast<std::uintptr_t>(memory.data()); })
      .def_prop_ro(
          "is_on_host", [](const Memory& memory) { return memory.device().is_host(); }, "Whether it is a buffer.")
      .def("capsule", &make_capsule, nb::arg("dtype"), nb::arg("shape"), nb::arg("offset"),
           nb::sig("def capsule(self, dtype: str, shape: tuple[int, ...], offset: int) -> typing.Any"),
           "One tensor of it, for another library's from_dlpack.");

  nb::class_<MemoryPool>(
      module, "MemoryPool",
      "The host memory that loads land in. Memory that the last tensor lets go of is kept, up to\n"
      "`max_kept_bytes`, and handed out again: faulting in fresh memory costs as much as reading the\n"
      "drive does. A pool may be shared by any number of loads and threads.")
      .def(nb::new_(&create_pool), nb::arg("max_kept_bytes") = nb::none(), nb::arg("huge_pages") = false)
      .def_static("process_default", &MemoryPool::process_default, "The pool of loads that name none.")
      .def_prop_ro("kept_bytes", &MemoryPool::kept_bytes, "Bytes kept for reuse now.")
      .def_prop_ro("used_bytes", &MemoryPool::used_bytes, "Bytes handed out and not yet released.")
      .def("take", &take_memory, nb::arg("nbytes"), nb::call_guard<GilRelease>(),
           "Memory for the caller's own use, contents undefined.")
      .def("trim", &MemoryPool::trim, nb::call_guard<GilRelease>(), "Gives everything kept back to the system.");

  module.def("read_process", &read_other, nb::arg("process"), nb::arg("address"), nb::arg("nbytes"), nb::arg("stride"),
             nb::arg("count"), nb::arg("to"), nb::call_guard<GilRelease>(),
             "Stretches of another process's memory, put side by side at an address.");
  module.def("let_siblings_read", &let_siblings_read,
             "Allows the parent of this process and its other children to read its memory.");
}

}  // namespace penstock::python
