#include <algorithm>
#include <unordered_set>

#include "callbacks.h"
#include "memory.h"

namespace penstock::python {
namespace {

using Path = std::filesystem::path;
using Names = std::optional<std::vector<std::string>>;

// Stopping the reads that are under way takes a moment: not with the GIL.
struct StreamHandle {
  StreamHandle(TensorStream opened, std::shared_ptr<Callbacks> its_callbacks, DlpackDevice its_device)
      : stream(std::move(opened)), callbacks(std::move(its_callbacks)), device(its_device) {}
  StreamHandle(StreamHandle&&) = default;
  ~StreamHandle() { close(); }

  void close() {
    if (!stream) return;
    GilRelease release;
    stream.reset();
  }

  TensorStream& get() {
    if (!stream) throw Error(ErrorKind::kArgument, "the stream is closed");
    return *stream;
  }

  std::optional<TensorStream> stream;
  std::shared_ptr<Callbacks> callbacks;  // of its allocator
  DlpackDevice device;
};

// The file as files() counts: what one holds packed is its own.
TensorInfo with_own_file(const Reader& reader, TensorInfo info) {
  const auto files = reader.files().first(info.file + 1u);
  info.file -= static_cast<std::uint32_t>(
      std::count_if(files.begin(), files.end(), [](const FileInfo& file) { return file.unpacked; }));
  return info;
}

nb::list tensor_infos(const Reader& reader) {
  nb::list result;
  const auto files = reader.files();
  const bool packed = std::any_of(files.begin(), files.end(), [](const FileInfo& file) { return file.unpacked; });
  for (const TensorInfo& info : reader.tensors()) {
    result.append(info_tuple(packed ? with_own_file(reader, info) : info));
  }
  return result;
}

nb::list tensor_names(const Reader& reader) {
  nb::list result;
  for (const TensorInfo& info : reader.tensors()) result.append(nb::str(info.name.data(), info.name.size()));
  return result;
}

std::optional<nb::tuple> find_tensor(const Reader& reader, std::string_view name) {
  const TensorInfo* info = reader.find(name);
  if (info == nullptr) return std::nullopt;
  return info_tuple(with_own_file(reader, *info));
}

nb::list file_infos(const Reader& reader) {
  nb::list result;
  for (const FileInfo& file : reader.files()) {
    if (file.unpacked) continue;
    result.append(nb::make_tuple(nb::cast(file.path), file.size, file.format, file.metadata));
  }
  return result;
}

nb::list opaque_values(const Reader& reader) {
  nb::list result;
  for (const FileInfo& file : reader.files()) {
    for (const OpaqueValue& value : file.opaque) result.append(nb::make_tuple(value.path, value.name));
  }
  return result;
}

using MaybeAllocator = std::optional<PythonAllocator>;

DlpackDevice device_for(const MaybeAllocator& allocator) {
  return allocator ? allocator->device() : DlpackDevice{};
}

LoadOptions with_allocator(LoadOptions options, const MaybeAllocator& allocator,
                           const std::shared_ptr<Callbacks>& callbacks) {
  if (allocator) options.allocate = allocator->function(callbacks);
  return options;
}

LoadOptions with_callbacks(const LoadOptions& options, const std::shared_ptr<Callbacks>& callbacks,
                           const MaybeAllocator& allocator = {}) {
  LoadOptions result = with_allocator(options, allocator, callbacks);
  result.progress = Callbacks::function(callbacks);
  return result;
}

// Of each leading dimension (begin, end, step)s; none: all of it.
using PythonPart = std::vector<std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>>;
using PythonParts = std::map<std::string, PythonPart>;

Part make_part(const PythonPart& given) {
  Part part;
  for (const auto& ranges : given) {
    part.emplace_back();
    for (const auto& [begin, end, step] : ranges) part.back().push_back({begin, end, step});
  }
  return part;
}

void add_parts(const PythonParts& given, LoadOptions& options) {
  for (const auto& [name, part] : given) options.parts.emplace(name, make_part(part));
}

// Python makes its tensors while their bytes are still on the way.
nb::tuple load(const Reader& reader, const Names& names, const LoadOptions& given, nb::object progress,
               nb::object build, const MaybeAllocator& allocator, const PythonParts& parts) {
  auto callbacks = Callbacks::create(std::move(progress));
  LoadOptions options = with_callbacks(given, callbacks, allocator);
  options.select = select_names(names);
  add_parts(parts, options);
  nb::object built;
  options.placed = callbacks->guard(ErrorKind::kCancelled, [&](std::span<const Tensor> tensors) {
    const CollectorPause pause;
    Exported exported = export_tensors(tensors, device_for(allocator));
    built = build(exported.memories, exported.rows);
  });
  const Stats stats = callbacks->run([&] { return reader.load(options).stats; });
  return nb::make_tuple(built, fields_dict(stats));
}

std::vector<Target> make_targets(const nb::list& rows) {
  std::vector<Target> targets;
  targets.reserve(rows.size());
  for (nb::handle row : rows) {
    const nb::tuple fields = nb::cast<nb::tuple>(row);
    auto* address = reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(fields[1]));
    targets.push_back({.name = nb::cast<std::string>(fields[0]),
                       .bytes = {address, nb::cast<std::size_t>(fields[2])},
                       .dtype = dtype_from(nb::cast<std::optional<std::string>>(fields[3])),
                       .part = fields.size() > 4 ? make_part(nb::cast<PythonPart>(fields[4])) : Part{},
                       .byte_strides = fields.size() > 5 ? nb::cast<std::vector<std::int64_t>>(fields[5])
                                                         : std::vector<std::int64_t>{}});
  }
  return targets;
}

nb::dict load_into(const Reader& reader, const nb::list& rows, const LoadOptions& given, nb::object progress) {
  auto callbacks = Callbacks::create(std::move(progress));
  const LoadOptions options = with_callbacks(given, callbacks);
  const std::vector<Target> targets = make_targets(rows);
  return fields_dict(callbacks->run([&] { return reader.load_into(targets, options); }));
}

nb::tuple load_slice(const Reader& reader, std::string_view name,
                     const std::vector<std::pair<std::int64_t, std::int64_t>>& ranges, const LoadOptions& given,
                     const MaybeAllocator& allocator) {
  auto callbacks = Callbacks::create(nb::none());
  const LoadOptions options = with_callbacks(given, callbacks, allocator);
  std::vector<Slice> slices;
  for (const auto& [begin, end] : ranges) slices.push_back({begin, end});
  std::vector<Tensor> tensors;
  tensors.push_back(callbacks->run([&] { return reader.load_slice(name, slices, options); }));
  Exported exported = export_tensors(tensors, device_for(allocator));
  return nb::make_tuple(exported.memories, exported.rows);
}

StreamHandle open_stream(const Reader& reader, const Names& names, const LoadOptions& given, const PythonParts& parts,
                         const MaybeAllocator& allocator) {
  auto callbacks = Callbacks::create(nb::none());
  LoadOptions options = with_allocator(given, allocator, callbacks);
  options.select = select_names(names);
  add_parts(parts, options);
  GilRelease release;
  return {reader.stream(options), std::move(callbacks), device_for(allocator)};
}

std::optional<nb::tuple> next_tensor(StreamHandle& handle) {
  TensorStream& stream = handle.get();
  std::vector<Tensor> tensors;
  handle.callbacks->translate([&] {
    wait_interruptibly(std::nullopt, [&](double seconds) {
      bool timed_out = false;
      if (auto tensor = stream.next_for(seconds, &timed_out)) tensors.push_back(std::move(*tensor));
      return !timed_out;
    });
  });
  if (tensors.empty()) return std::nullopt;
  Exported exported = export_tensors(tensors, handle.device);
  return nb::make_tuple(exported.memories, exported.rows);
}

using Stretch = std::optional<std::pair<std::uint64_t, std::uint64_t>>;

Reader open_all_side_by_side(const std::vector<std::pair<Path, Stretch>>& files) {
  std::vector<EmbeddedFile> embedded;
  for (const auto& [path, stretch] : files) embedded.push_back({path, stretch});
  GilRelease release;
  return open_side_by_side(embedded);
}

#define PENSTOCK_INFO "tuple[str, str, tuple[int, ...], int, int, int]"
#define PENSTOCK_PART "collections.abc.Sequence[collections.abc.Sequence[tuple[int, int, int]]]"
#define PENSTOCK_PARTS "dict[str, " PENSTOCK_PART "]"
#define PENSTOCK_LOADED "list[Memory], list[tuple[str, str, tuple[int, ...], int, int, int]]"

}  // namespace

std::function<bool(const TensorInfo&)> select_names(const std::optional<std::vector<std::string>>& names) {
  if (!names) return {};
  return [wanted = std::unordered_set<std::string>(names->begin(), names->end())](const TensorInfo& info) {
    return wanted.contains(info.name);
  };
}

void bind_reader(nb::module_& module) {
  nb::class_<StreamHandle>(module, "TensorStream", "Tensors in the order they lie in the files, as their bytes land.")
      .def(
          "start", [](StreamHandle& handle) { handle.get().start(); }, nb::call_guard<GilRelease>())
      .def("next", &next_tensor, nb::sig("def next(self) -> tuple[" PENSTOCK_LOADED "] | None"))
      .def(
          "stats", [](StreamHandle& handle) { return fields_dict(handle.get().stats()); },
          nb::sig("def stats(self) -> dict[str, typing.Any]"))
      .def("close", &StreamHandle::close);

  nb::class_<Reader>(module, "Reader", "An open checkpoint.")
      .def(
          "__init__",
          [](Reader* self, const Path& path) {
            GilRelease release;
            new (self) Reader(path);
          },
          nb::arg("path"), nb::sig("def __init__(self, path: str | os.PathLike[str]) -> None"))
      .def(
          "__init__",
          [](Reader* self, const std::vector<Path>& paths) {
            GilRelease release;
            new (self) Reader(std::span<const Path>(paths));
          },
          nb::arg("paths"),
          nb::sig("def __init__(self, paths: collections.abc.Sequence[str | os.PathLike[str]]) -> None"))
      .def("__len__", [](const Reader& reader) { return reader.tensors().size(); })
      .def("names", &tensor_names, nb::sig("def names(self) -> list[str]"))
      .def("infos", &tensor_infos, nb::sig("def infos(self) -> list[" PENSTOCK_INFO "]"))
      .def("find", &find_tensor, nb::arg("name"), nb::sig("def find(self, name: str) -> " PENSTOCK_INFO " | None"))
      .def("files", &file_infos, nb::sig("def files(self) -> list[tuple[pathlib.Path, int, str, dict[str, str]]]"))
      .def("opaque", &opaque_values, nb::sig("def opaque(self) -> list[tuple[str, str]]"))
      .def("metadata", [](const Reader& reader) { return reader.metadata(); })
      .def("resident_bytes", &Reader::resident_bytes, nb::call_guard<GilRelease>())
      .def("load", &load, nb::arg("names").none(), nb::arg("options"), nb::arg("progress").none(), nb::arg("build"),
           nb::arg("allocator") = nb::none(), nb::arg("parts") = PythonParts{},
           nb::sig("def load(self, names: collections.abc.Sequence[str] | None, options: LoadOptions, progress: "
                   "collections.abc.Callable[[int, int], typing.Any] | None, build: "
                   "collections.abc.Callable[[" PENSTOCK_LOADED "], typing.Any], allocator: Allocator | None = None, "
                   "parts: " PENSTOCK_PARTS " = {}) -> tuple[typing.Any, dict[str, typing.Any]]"))
      .def("load_into", &load_into, nb::arg("targets"), nb::arg("options"), nb::arg("progress").none(),
           nb::sig("def load_into(self, targets: list[tuple[str, int, int, str | None]] | list[tuple[str, int, int, "
                   "str | None, " PENSTOCK_PART "]] | list[tuple[str, int, int, str | None, " PENSTOCK_PART
                   ", collections.abc.Sequence[int]]], options: LoadOptions, "
                   "progress: collections.abc.Callable[[int, int], typing.Any] | None) -> dict[str, typing.Any]"))
      .def("load_slice", &load_slice, nb::arg("name"), nb::arg("ranges"), nb::arg("options"),
           nb::arg("allocator") = nb::none(),
           nb::sig("def load_slice(self, name: str, ranges: collections.abc.Sequence[tuple[int, int]], options: "
                   "LoadOptions, allocator: Allocator | None = None) -> tuple[" PENSTOCK_LOADED "]"))
      .def("stream", &open_stream, nb::arg("names").none(), nb::arg("options"), nb::arg("parts") = PythonParts{},
           nb::arg("allocator") = nb::none(),
           nb::sig("def stream(self, names: collections.abc.Sequence[str] | None, options: LoadOptions, parts: "
                   "" PENSTOCK_PARTS " = {}, allocator: Allocator | None = None) -> TensorStream"));

  module.def("open_side_by_side", &open_all_side_by_side, nb::arg("files"),
             nb::sig("def open_side_by_side(files: collections.abc.Sequence[tuple[str | os.PathLike[str], "
                     "tuple[int, int] | None]]) -> Reader"),
             "Checkpoints, or stretches of files (offset, length) that are such, whose tensors may share names: "
             "\"3/weight\".");
  module.def("flashpack_footer", &flashpack_footer, nb::arg("path"), nb::call_guard<GilRelease>(),
             nb::sig("def flashpack_footer(path: str | os.PathLike[str]) -> str"),
             "The JSON of a FlashPack file's footer, once all of it was checked.");
  module.def("open_flashpack_blocks", &open_flashpack_blocks, nb::arg("path"), nb::call_guard<GilRelease>(),
             nb::sig("def open_flashpack_blocks(path: str | os.PathLike[str]) -> Reader"),
             "A FlashPack file's blocks as tensors \"0\", \"1\", ...");
}

}  // namespace penstock::python
