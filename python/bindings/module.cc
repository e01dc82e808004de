#include "bindings.h"

NB_MODULE(_core, module) {
  using namespace penstock::python;
  nb::set_leak_warnings(false);  // at exit, whatever still holds a tensor would be listed
  module.doc() = "The penstock engine. The public API is the package around this module.";
  module.def("version", &penstock::version, "The version of the engine.");
  bind_errors(module);
  bind_formats(module);
  bind_memory(module);
  bind_device(module);
  bind_options(module);
  bind_reader(module);
  bind_writer(module);
  bind_convert(module);
  bind_measure(module);
  bind_doctor(module);
  bind_aio(module);
  bind_torch(module);
}
