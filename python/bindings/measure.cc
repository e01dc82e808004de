#include "bindings.h"

namespace penstock::python {
namespace {

using Path = std::filesystem::path;

template <typename Work>
nb::dict measured(Work&& work) {
  Throughput throughput;
  {
    GilRelease release;
    throughput = work();
  }
  return fields_dict(throughput);
}

}  // namespace

void bind_measure(nb::module_& module) {
  module.def(
      "measure_read",
      [](const Path& path, const IoOptions& io, std::uint64_t max_bytes) {
        return measured([&] { return measure_read(path, io, max_bytes); });
      },
      nb::arg("path"), nb::arg("io"), nb::arg("max_bytes"),
      nb::sig(
          "def measure_read(path: str | os.PathLike[str], io: IoOptions, max_bytes: int) -> dict[str, typing.Any]"));
  module.def(
      "measure_write",
      [](const Path& directory, const IoOptions& io, std::string_view method, std::uint64_t nbytes) {
        const WriteMethod chosen = choice_from<WriteMethod>("method", method);
        return measured([&] { return measure_write(directory, io, chosen, nbytes); });
      },
      nb::arg("directory"), nb::arg("io"), nb::arg("method"), nb::arg("nbytes"),
      nb::sig("def measure_write(directory: str | os.PathLike[str], io: IoOptions, method: str, nbytes: int) -> "
              "dict[str, typing.Any]"));
  module.def("drop_page_cache", &drop_page_cache, nb::arg("path"), nb::call_guard<GilRelease>(),
             nb::sig("def drop_page_cache(path: str | os.PathLike[str]) -> None"));
  module.def("available_backends", &available_backends);
}

}  // namespace penstock::python
