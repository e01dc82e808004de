#include "callbacks.h"

namespace penstock::python {
namespace {

using Path = std::filesystem::path;

nb::dict convert_files(const std::vector<Path>& sources, const Path& target,
                       const std::optional<std::vector<std::string>>& names, const std::optional<std::string>& dtype,
                       const nb::object& rename, bool keep_metadata, bool overwrite, const std::string& verify,
                       const SaveOptions& save, nb::object progress) {
  auto callbacks = Callbacks::create(std::move(progress));
  ConvertOptions options;
  options.select = select_names(names);
  options.dtype = dtype_from(dtype);
  if (!rename.is_none()) {
    options.rename = [&](std::string_view name) {
      std::string result;
      callbacks->guard(ErrorKind::kCancelled, [&] { result = nb::cast<std::string>(rename(name)); })();
      return result;
    };
  }
  options.keep_metadata = keep_metadata;
  options.overwrite = overwrite;
  options.verify = choice_from<Verify>("verify", verify);
  options.save = save;
  options.save.progress = Callbacks::function(callbacks);
  return fields_dict(callbacks->run([&] { return convert(std::span(sources), target, options); }));
}

nb::list list_source(const std::vector<Path>& sources) {
  nb::list result;
  for (const TensorInfo& info : source_tensors(sources)) result.append(info_tuple(info));
  return result;
}

nb::dict verify_file(const Path& path, VerifyOptions options, nb::object progress) {
  auto callbacks = Callbacks::create(std::move(progress));
  options.progress = Callbacks::function(callbacks);
  return fields_dict(callbacks->run([&] { return verify(path, options); }));
}

nb::dict seal_files(const std::vector<Path>& paths, SealOptions options, nb::object progress) {
  auto callbacks = Callbacks::create(std::move(progress));
  options.progress = Callbacks::function(callbacks);
  return fields_dict(callbacks->run([&] { return seal(std::span(paths), options); }));
}

}  // namespace

void bind_convert(nb::module_& module) {
  module.def(
      "convert", &convert_files, nb::arg("sources"), nb::arg("target"), nb::kw_only(), nb::arg("names").none(),
      nb::arg("dtype").none(), nb::arg("rename").none(), nb::arg("keep_metadata"), nb::arg("overwrite"),
      nb::arg("verify"), nb::arg("save"), nb::arg("progress").none(),
      nb::sig(
          "def convert(sources: collections.abc.Sequence[str | os.PathLike[str]], target: str | os.PathLike[str], *, "
          "names: collections.abc.Sequence[str] | None, dtype: str | None, rename: collections.abc.Callable[[str], "
          "str] | None, keep_metadata: bool, overwrite: bool, verify: str, save: SaveOptions, progress: "
          "collections.abc.Callable[[int, int], typing.Any] | None) -> dict[str, typing.Any]"));
  module.def("source_tensors", &list_source, nb::arg("sources"),
             nb::sig("def source_tensors(sources: collections.abc.Sequence[str | os.PathLike[str]]) -> "
                     "list[tuple[str, str, tuple[int, ...], int, int, int]]"));
  module.def("verify", &verify_file, nb::arg("path"), nb::arg("options"), nb::arg("progress").none(),
             nb::sig("def verify(path: str | os.PathLike[str], options: VerifyOptions, progress: "
                     "collections.abc.Callable[[int, int], typing.Any] | None) -> dict[str, typing.Any]"));
  module.def("seal", &seal_files, nb::arg("paths"), nb::arg("options"), nb::arg("progress").none(),
             nb::sig("def seal(paths: collections.abc.Sequence[str | os.PathLike[str]], options: SealOptions, "
                     "progress: collections.abc.Callable[[int, int], typing.Any] | None) -> dict[str, typing.Any]"));
}

}  // namespace penstock::python
