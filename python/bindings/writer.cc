#include <nanobind/stl/tuple.h>

#include "device.h"

namespace penstock::python {
namespace {

// A Writer, and the callable that its progress goes to.
struct WriterHandle {
  WriterHandle(const std::filesystem::path& path, SaveOptions options, nb::object progress)
      : callbacks(Callbacks::create(std::move(progress))), writer(path, with_progress(std::move(options))) {}

  SaveOptions with_progress(SaveOptions options) const {
    options.progress = Callbacks::function(callbacks);
    return options;
  }

  // A Writer is used once.
  Writer& get() {
    if (used) throw Error(ErrorKind::kArgument, "the writer was used already");
    return writer;
  }

  Writer& use() {
    Writer& unused = get();
    used = true;
    return unused;
  }

  std::shared_ptr<Callbacks> callbacks;
  Writer writer;
  bool needs_python = false;  // some of its bytes are produced there
  bool used = false;
};

// Destroying an unfinished job waits for it: not with the GIL, and not where it can't end: in a fork of the process,
// whose threads are missing, and behind the end of the Python that it needs. There it is left alone.
struct JobHandle {
  JobHandle(SaveJob started, bool calls_python)
      : job(std::make_unique<SaveJob>(std::move(started))), needs_python(calls_python) {}
  JobHandle(JobHandle&&) = default;
  ~JobHandle() {
    if (!job) return;
    if (is_foreign() || (needs_python && Py_IsInitialized() == 0)) {
      static_cast<void>(job.release());
      return;
    }
    GilRelease release;
    job.reset();
  }

  bool is_foreign() const { return getpid() != process; }

  SaveJob& get() const {
    if (is_foreign())
      throw Error(ErrorKind::kArgument, "the save belongs to the process that this one was forked from");
    return *job;
  }

  std::unique_ptr<SaveJob> job;
  bool needs_python;
  pid_t process = getpid();
};

void add_tensor(WriterHandle& handle, std::string name, std::string_view dtype, Shape shape, std::uintptr_t address,
                const std::optional<std::vector<std::int64_t>>& byte_strides) {
  const void* data = reinterpret_cast<const void*>(address);
  if (byte_strides) {
    handle.get().add(std::move(name), dtype_from(dtype), std::move(shape), data, *byte_strides);
  } else {
    handle.get().add(std::move(name), dtype_from(dtype), std::move(shape), data);
  }
}

void add_produced(WriterHandle& handle, std::string name, std::string_view dtype, Shape shape, nb::object read) {
  handle.needs_python = true;
  handle.get().add(std::move(name), dtype_from(dtype), std::move(shape),
                   Callbacks::fill(handle.callbacks, std::move(read)));
}

nb::dict commit(WriterHandle& handle) {
  Writer& writer = handle.use();
  return fields_dict(handle.callbacks->run([&] { return writer.commit(); }));
}

JobHandle start(WriterHandle& handle, bool snapshot, std::shared_ptr<MemoryPool> pool, bool on_device,
                const std::optional<PythonAllocator>& allocator) {
  SaveAsyncOptions options{.snapshot = snapshot, .pool = std::move(pool), .on_device = on_device, .allocate = {}};
  // Where it fails the snapshot is the host's, and the save goes on.
  if (allocator) options.allocate = allocator->function(Callbacks::create(nb::none()));
  Writer& writer = handle.use();
  GilRelease release;
  return {save_async(std::move(writer), std::move(options)), handle.needs_python};
}

bool staged(JobHandle& handle, std::optional<double> timeout) {
  return wait_interruptibly(timeout, [&](double seconds) { return handle.get().staged_for(seconds); });
}

std::optional<nb::dict> wait(JobHandle& handle, std::optional<double> timeout) {
  const bool over = wait_interruptibly(timeout, [&](double seconds) { return handle.get().wait_for(seconds); });
  if (!over) return std::nullopt;
  return fields_dict(handle.get().wait());
}

std::tuple<std::uint64_t, std::uint64_t, double> progress(const JobHandle& handle) {
  const Progress now = handle.get().progress();
  return {now.bytes_done, now.bytes_total, now.seconds};
}

// A share of a save, and the callable that its progress goes to.
struct ParallelHandle {
  explicit ParallelHandle(WriterHandle& handle)
      : callbacks(handle.callbacks), save(ParallelSave(std::move(handle.use()))) {}

  std::shared_ptr<Callbacks> callbacks;
  ParallelSave save;
};

using Checksums = std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t>>;

Checksums write_share(ParallelHandle& handle, unsigned rank, unsigned count) {
  Checksums rows;
  for (const ShareChecksum& share : handle.callbacks->run([&] { return handle.save.write(rank, count); })) {
    rows.emplace_back(share.tensor, share.checksum, share.offset, share.nbytes);
  }
  return rows;
}

nb::dict commit_shares(ParallelHandle& handle, const Checksums& rows) {
  std::vector<ShareChecksum> checksums;
  for (const auto& [tensor, checksum, offset, nbytes] : rows) checksums.push_back({tensor, checksum, offset, nbytes});
  return fields_dict(handle.callbacks->run([&] { return handle.save.commit(checksums); }));
}

// Files that are laid out in Python and appear together.
class FileSetHandle {
 public:
  // (path, header, size, [(tensor, offset, nbytes)])
  using File = std::tuple<std::filesystem::path, nb::bytes, std::uint64_t,
                          std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t>>>;

  FileSetHandle(WriterHandle& handle, const std::vector<File>& files, std::uint64_t min_free_bytes)
      : callbacks_(handle.callbacks) {
    std::vector<FileSetFile> layout;
    for (const auto& [path, header, size, tensors] : files) {
      FileSetFile& file = layout.emplace_back(FileSetFile{path, std::string(header.c_str(), header.size()), size, {}});
      for (const auto& [name, offset, nbytes] : tensors) file.tensors.push_back({name, offset, nbytes});
    }
    Writer& writer = handle.use();
    set_ = callbacks_->run(
        [&] { return std::make_unique<FileSet>(std::move(writer), std::move(layout), min_free_bytes); });
  }

  void write() {
    callbacks_->run([this] { get().write(); });
  }
  int descriptor(std::size_t file) {
    const GilRelease release;
    return get().descriptor(file);
  }
  std::vector<std::filesystem::path> publish_set() {
    return callbacks_->run([this] { return get().publish_set(); });
  }
  void publish_each() {
    callbacks_->run([this] { get().publish_each(); });
  }
  void abandon() {
    const GilRelease release;
    set_.reset();
  }

 private:
  FileSet& get() const {
    if (!set_) throw Error(ErrorKind::kArgument, "the set of files was abandoned");
    return *set_;
  }

  std::shared_ptr<Callbacks> callbacks_;
  std::unique_ptr<FileSet> set_;
};

// Files that are written one by one and appear together.
void add_to_set(SetWriter& set, WriterHandle& handle) {
  Writer& writer = handle.use();
  handle.callbacks->run([&] { set.add(std::move(writer)); });
}

std::vector<std::string> publish_set(SetWriter& set, const std::map<std::string, std::string>& metadata) {
  const GilRelease release;
  std::vector<std::string> paths;
  for (const std::filesystem::path& path : set.publish(metadata)) paths.push_back(path.native());
  return paths;
}

}  // namespace

void bind_writer(nb::module_& module) {
  nb::class_<WriterHandle>(module, "Writer", "Collects tensors, whose memory it borrows, and saves them.")
      .def(nb::init<const std::filesystem::path&, SaveOptions, nb::object>(), nb::arg("path"), nb::arg("options"),
           nb::arg("progress").none(),
           nb::sig("def __init__(self, path: str | os.PathLike[str], options: SaveOptions, progress: "
                   "collections.abc.Callable[[int, int], typing.Any] | None) -> None"))
      .def("add", &add_tensor, nb::arg("name"), nb::arg("dtype"), nb::arg("shape"), nb::arg("address"),
           nb::arg("byte_strides").none())
      .def("add_produced", &add_produced, nb::arg("name"), nb::arg("dtype"), nb::arg("shape"), nb::arg("read"),
           nb::sig("def add_produced(self, name: str, dtype: str, shape: collections.abc.Sequence[int], read: "
                   "collections.abc.Callable[[int, int, int], None]) -> None"))
      .def_prop_ro("nbytes", [](WriterHandle& handle) { return handle.get().nbytes(); })
      .def("commit", &commit, nb::sig("def commit(self) -> dict[str, typing.Any]"));

  nb::class_<JobHandle>(module, "SaveJob", "A save that runs in the background.")
      .def("staged", &staged, nb::arg("timeout").none())
      .def("wait", &wait, nb::arg("timeout").none(),
           nb::sig("def wait(self, timeout: float | None) -> dict[str, typing.Any] | None"))
      .def("cancel", [](JobHandle& handle) { handle.get().cancel(); })
      .def_prop_ro("done", [](const JobHandle& handle) { return handle.get().done(); })
      .def_prop_ro("progress", &progress);

  nb::class_<ParallelHandle>(module, "ParallelSave", "One process's part of a save by several.")
      .def(nb::init<WriterHandle&>(), nb::arg("writer"))
      .def_prop_ro("fingerprint", [](const ParallelHandle& handle) { return handle.save.fingerprint(); })
      .def(
          "create", [](ParallelHandle& handle) { return handle.save.create(); }, nb::call_guard<GilRelease>())
      .def(
          "join", [](ParallelHandle& handle, const std::string& names) { handle.save.join(names); }, nb::arg("names"),
          nb::call_guard<GilRelease>())
      .def("write", &write_share, nb::arg("rank"), nb::arg("count"),
           nb::sig("def write(self, rank: int, count: int) -> list[tuple[int, int, int, int]]"))
      .def("commit", &commit_shares, nb::arg("checksums"),
           nb::sig("def commit(self, checksums: collections.abc.Sequence[tuple[int, int, int, int]]) -> dict[str, "
                   "typing.Any]"));

  nb::class_<FileSetHandle>(module, "FileSet", "Files that are laid out by the caller and appear together.")
      .def(nb::init<WriterHandle&, const std::vector<FileSetHandle::File>&, std::uint64_t>(), nb::arg("writer"),
           nb::arg("files"), nb::arg("min_free_bytes"),
           nb::sig("def __init__(self, writer: Writer, files: collections.abc.Sequence[tuple[str, bytes, int, "
                   "collections.abc.Sequence[tuple[str, int, int]]]], min_free_bytes: int) -> None"))
      .def("write", &FileSetHandle::write)
      .def("descriptor", &FileSetHandle::descriptor, nb::arg("file"))
      .def("publish_set", &FileSetHandle::publish_set)
      .def("publish_each", &FileSetHandle::publish_each)
      .def("abandon", &FileSetHandle::abandon);

  nb::class_<SetWriter>(module, "SetWriter", "Files that are written one after the other and appear together.")
      .def(nb::init<std::filesystem::path, bool>(), nb::arg("path"), nb::arg("durable"),
           nb::sig("def __init__(self, path: str | os.PathLike[str], durable: bool) -> None"))
      .def("add", &add_to_set, nb::arg("writer"))
      .def_prop_ro("count", &SetWriter::count)
      .def("publish", &publish_set, nb::arg("metadata"),
           nb::sig("def publish(self, metadata: collections.abc.Mapping[str, str]) -> list[str]"));

  module.def("save_async", &start, nb::arg("writer"), nb::arg("snapshot"), nb::arg("pool").none(),
             nb::arg("on_device") = false, nb::arg("allocator") = nb::none());
}

}  // namespace penstock::python
