// The asynchronous I/O handle, files that are written from front to back, and locked memory.
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "callbacks.h"
#include "memory.h"

namespace penstock::python {
namespace {

// Between two steps of so many bytes a long append looks for Ctrl-C.
constexpr std::size_t kInterruptStep = 64 << 20;

// Something with threads of its own. Letting go of it waits for them: not with the GIL, and not in a fork of the
// process, where they are missing. There it is left alone.
template <typename Thing>
class Threaded {
 public:
  explicit Threaded(Thing thing) : thing_(std::make_unique<Thing>(std::move(thing))) {}
  Threaded(Threaded&&) = default;
  ~Threaded() {
    if (!thing_) return;
    if (getpid() != process_) {
      static_cast<void>(thing_.release());
      return;
    }
    GilRelease release;
    thing_.reset();
  }

  Thing& get() const {
    if (getpid() != process_) {
      throw Error(ErrorKind::kArgument, "it belongs to the process that this one was forked from");
    }
    return *thing_;
  }

 private:
  std::unique_ptr<Thing> thing_;
  pid_t process_ = getpid();
};

// An object that is let go of on whatever thread has it last.
std::shared_ptr<const void> hold(nb::object object) {
  PyObject* held = object.release().ptr();
  return {held, [](const void* last) {
            let_go_with_gil([last] { Py_DECREF(static_cast<PyObject*>(const_cast<void*>(last))); });
          }};
}

AioMemory memory_of(std::uintptr_t address, std::size_t nbytes, nb::object owner) {
  return {reinterpret_cast<void*>(address), nbytes, hold(std::move(owner))};
}

struct AioBinding : Threaded<AioHandle> {
  AioBinding(std::size_t block_size, unsigned queue_depth, bool single_submit, bool overlap_events,
             unsigned intra_op_parallelism)
      : Threaded(AioHandle({block_size, queue_depth, single_submit, overlap_events, intra_op_parallelism})) {}
};

AioPlace place_of(const std::filesystem::path& path, std::optional<std::uint64_t> offset, bool validate) {
  return {path, offset, -1, validate};
}

void aio_read(AioBinding& handle, std::uintptr_t address, std::size_t nbytes, nb::object owner,
              const std::filesystem::path& path, std::uint64_t offset, bool validate, bool background) {
  const AioMemory memory = memory_of(address, nbytes, std::move(owner));
  GilRelease release;
  const AioPlace place = place_of(path, offset, validate);
  background ? handle.get().start_read(memory, place) : handle.get().read(memory, place);
}

void aio_write(AioBinding& handle, std::uintptr_t address, std::size_t nbytes, nb::object owner,
               const std::filesystem::path& path, std::optional<std::uint64_t> offset, bool validate, bool background) {
  const AioMemory memory = memory_of(address, nbytes, std::move(owner));
  GilRelease release;
  const AioPlace place = place_of(path, offset, validate);
  background ? handle.get().start_write(memory, place) : handle.get().write(memory, place);
}

void aio_write_descriptor(AioBinding& handle, std::uintptr_t address, std::size_t nbytes, nb::object owner, int fd,
                          std::uint64_t offset) {
  const AioMemory memory = memory_of(address, nbytes, std::move(owner));
  GilRelease release;
  handle.get().start_write(memory, {{}, offset, fd, false});
}

std::size_t aio_wait(AioBinding& handle) {
  wait_interruptibly(std::nullopt, [&](double seconds) { return handle.get().wait_for(seconds); });
  GilRelease release;
  return handle.get().wait();
}

// The bytes of any object with a contiguous buffer.
class BufferView {
 public:
  explicit BufferView(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  ~BufferView() { PyBuffer_Release(&view_); }

  const std::byte* data() const { return static_cast<const std::byte*>(view_.buf); }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

// A StreamFile that several Python threads may use, one after the other.
class StreamBinding {
 public:
  StreamBinding(const std::filesystem::path& path, const StreamOptions& options) : file_(open(path, options)) {}

  std::size_t write(nb::handle object) {
    const BufferView view(object);
    append(view.data(), view.size());
    return view.size();
  }

  void write_memory(const std::vector<std::pair<std::uintptr_t, std::size_t>>& pieces) {
    for (const auto& [address, nbytes] : pieces) append(reinterpret_cast<const std::byte*>(address), nbytes);
  }

  void reserve(std::uint64_t nbytes) {
    without_gil([&](StreamFile& file) { file.reserve(nbytes); });
  }
  void flush() {
    without_gil([](StreamFile& file) { file.flush(); });
  }
  void finish() {
    without_gil([](StreamFile& file) { file.finish(); });
  }
  void abandon() {
    without_gil([](StreamFile& file) { file.abandon(); });
  }

  nb::dict stats() {
    StreamStats stats;
    without_gil([&](StreamFile& file) { stats = file.stats(); });
    return fields_dict(stats);
  }

 private:
  static StreamFile open(const std::filesystem::path& path, const StreamOptions& options) {
    GilRelease release;
    return StreamFile(path, options);
  }

  template <typename Use>
  void without_gil(Use&& use) {
    StreamFile& file = file_.get();
    GilRelease release;
    const std::lock_guard lock(mutex_);
    use(file);
  }

  void append(const std::byte* data, std::size_t nbytes) {
    if (append_quickly(data, nbytes)) return;
    while (nbytes > 0) {
      const std::size_t step = std::min(nbytes, kInterruptStep);
      without_gil([&](StreamFile& file) { file.append(data, step); });
      data += step;
      nbytes -= step;
      if (nbytes > 0 && PyErr_CheckSignals() != 0) stop_halfway();
    }
  }

  // Little that fits is copied in less time than handing the GIL over takes.
  bool append_quickly(const std::byte* data, std::size_t nbytes) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || nbytes > kReleaseGilFrom || nbytes > file_.get().room()) return false;
    file_.get().append(data, nbytes);
    return true;
  }

  // What was being written is not whole, and must not become a file.
  [[noreturn]] void stop_halfway() {
    nb::python_error interrupt;
    abandon();
    throw interrupt;
  }

  static constexpr std::size_t kReleaseGilFrom = 64 << 10;

  Threaded<StreamFile> file_;
  std::mutex mutex_;
};

nb::tuple locked_memory(std::size_t nbytes) {
  LockedMemory memory;
  {
    GilRelease release;
    memory = allocate_locked(nbytes);
  }
  return nb::make_tuple(Memory(std::move(memory.owner), memory.data, nbytes), memory.locked);
}

}  // namespace

void bind_aio(nb::module_& module) {
  nb::class_<AioBinding>(module, "AioHandle",
                         "Reads and writes of plain files, several at a time and in the background.")
      .def(nb::init<std::size_t, unsigned, bool, bool, unsigned>(), nb::arg("block_size"), nb::arg("queue_depth"),
           nb::arg("single_submit"), nb::arg("overlap_events"), nb::arg("intra_op_parallelism"))
      .def_prop_ro("alignment", [](const AioBinding& handle) { return handle.get().alignment(); })
      .def_prop_ro("pending", [](const AioBinding& handle) { return handle.get().pending(); })
      .def("read", &aio_read, nb::arg("address"), nb::arg("nbytes"), nb::arg("owner"), nb::arg("path"),
           nb::arg("offset"), nb::arg("validate"), nb::arg("background"),
           nb::sig("def read(self, address: int, nbytes: int, owner: object, path: str | os.PathLike[str], offset: "
                   "int, validate: bool, background: bool) -> None"))
      .def("write", &aio_write, nb::arg("address"), nb::arg("nbytes"), nb::arg("owner"), nb::arg("path"),
           nb::arg("offset").none(), nb::arg("validate"), nb::arg("background"),
           nb::sig("def write(self, address: int, nbytes: int, owner: object, path: str | os.PathLike[str], offset: "
                   "int | None, validate: bool, background: bool) -> None"))
      .def("write_descriptor", &aio_write_descriptor, nb::arg("address"), nb::arg("nbytes"), nb::arg("owner"),
           nb::arg("fd"), nb::arg("offset"))
      .def("wait", &aio_wait);

  nb::class_<StreamBinding>(module, "StreamFile", "A file that is written from front to back.")
      .def(nb::init<const std::filesystem::path&, const StreamOptions&>(), nb::arg("path"), nb::arg("options"),
           nb::sig("def __init__(self, path: str | os.PathLike[str], options: StreamOptions) -> None"))
      .def("write", &StreamBinding::write, nb::arg("buffer"), nb::sig("def write(self, buffer: typing.Any) -> int"))
      .def("write_memory", &StreamBinding::write_memory, nb::arg("pieces"))
      .def("reserve", &StreamBinding::reserve, nb::arg("nbytes"))
      .def("flush", &StreamBinding::flush)
      .def("finish", &StreamBinding::finish)
      .def("abandon", &StreamBinding::abandon)
      .def("stats", &StreamBinding::stats, nb::sig("def stats(self) -> dict[str, typing.Any]"));

  module.def("locked_memory", &locked_memory, nb::arg("nbytes"),
             nb::sig("def locked_memory(nbytes: int) -> tuple[Memory, bool]"),
             "Memory at a page boundary, and whether it could be locked there.");
}

}  // namespace penstock::python
