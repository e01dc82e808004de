// What Python need not know itself: formats by bytes and by suffix, and the element types.
#include "bindings.h"

namespace penstock::python {
namespace {

// Types of one kind can stand in for each other.
const char* kind_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return "bool";
    case DType::kC32:
    case DType::kC64:
    case DType::kC128:
      return "complex";
    default:
      return dtype_is_floating(dtype) ? "floating" : "integer";
  }
}

nb::list dtypes() {
  nb::list rows;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    rows.append(nb::make_tuple(dtype_object(dtype), dtype_torch_name(dtype), dtype_bits(dtype), kind_of(dtype)));
  }
  return rows;
}

}  // namespace

void bind_formats(nb::module_& module) {
  module.def("detect_format", &detect_format, nb::arg("path"), nb::call_guard<GilRelease>(),
             nb::sig("def detect_format(path: str | os.PathLike[str]) -> str | None"),
             "The format that a file's bytes look like; None for no format that can be read.");
  module.def("format_for_suffix", &format_for_suffix, nb::arg("path"),
             nb::sig("def format_for_suffix(path: str | os.PathLike[str]) -> str | None"),
             "The format that the suffix of a path stands for; None for no format.");
  module.def("dtypes", &dtypes, nb::sig("def dtypes() -> list[tuple[str, str, int, str]]"),
             "Every element type: name, torch's name (\"\": it has none), bits, and kind: \"floating\", \"complex\", "
             "\"bool\" or \"integer\".");
  module.def(
      "find_dtype", [](std::string_view text) { return dtype_object(dtype_from(text)); }, nb::arg("text"),
      nb::sig("def find_dtype(text: str) -> str"),
      "The element type that text stands for: F32, float32, torch.float32, fp32, float ...");
}

}  // namespace penstock::python
