#include "bindings.h"

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
}

}  // namespace penstock::python
