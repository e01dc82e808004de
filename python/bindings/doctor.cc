#include "bindings.h"
#include "penstock/leftovers.h"

namespace penstock::python {

void bind_doctor(nb::module_& module) {
  module.def(
      "diagnose",
      [](const std::filesystem::path& path, const LoadOptions& options) {
        Diagnosis diagnosis;
        {
          GilRelease release;
          diagnosis = diagnose(path, options);
        }
        return fields_dict(diagnosis);
      },
      nb::arg("path"), nb::arg("options"),
      nb::sig("def diagnose(path: str | os.PathLike[str], options: LoadOptions) -> dict[str, typing.Any]"));
  module.def(
      "remove_leftovers",
      [](const std::filesystem::path& directory) {
        std::vector<std::pair<std::filesystem::path, bool>> gone;
        GilRelease release;
        for (Leftover& each : remove_leftovers(directory)) gone.emplace_back(std::move(each.path), each.restored);
        return gone;
      },
      nb::arg("directory"),
      nb::sig("def remove_leftovers(directory: str | os.PathLike[str]) -> list[tuple[pathlib.Path, bool]]"));
}

}  // namespace penstock::python
