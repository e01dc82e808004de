// diagnose(): the fields of penstock/doctor.h, as dicts.
#include "bindings.h"

namespace penstock::python {
namespace {

template <typename T>
nb::object or_none(const std::optional<T>& value) {
  return value ? nb::cast(*value) : nb::none();
}

nb::object limit_object(std::uint64_t limit) {
  return limit == Machine::kUnlimited ? nb::none() : nb::cast(limit);
}

nb::dict file_dict(const FileDiagnosis& file) {
  nb::dict result;
  result["path"] = file.path.string();
  result["size"] = file.size;
  result["format"] = file.format;
  result["filesystem"] = file.filesystem;
  result["device"] = file.device;
  result["local"] = file.local;
  result["in_memory"] = file.in_memory;
  result["virtual_drive"] = file.virtual_drive;
  result["read_ahead"] = or_none(file.read_ahead);
  result["read_ahead_setting"] = file.read_ahead_setting;
  result["direct"] = file.direct;
  result["offset_alignment"] = file.offset_alignment;
  result["memory_alignment"] = file.memory_alignment;
  result["alignment_reported"] = file.alignment_reported;
  result["direct_refusal"] = file.direct_refusal;
  result["span"] = file.span;
  result["resident_bytes"] = file.resident_bytes;
  result["residency_source"] = file.residency_source;
  result["extents"] = or_none(file.extents);
  return result;
}

nb::dict forecast_dict(const Forecast& forecast) {
  nb::dict result = stats_dict(forecast.stats);
  result["mapping"] = forecast.mapping;
  result["backend_reason"] = forecast.backend_reason;
  result["bytes_dropped"] = forecast.bytes_dropped;
  return result;
}

nb::object forecast_object(const std::optional<Forecast>& forecast) {
  return forecast ? nb::object(forecast_dict(*forecast)) : nb::none();
}

nb::dict machine_dict(const Machine& machine) {
  nb::dict result;
  result["kernel"] = machine.kernel;
  result["uring"] = machine.uring;
  result["uring_error"] = machine.uring_error;
  result["uring_disabled"] = or_none(machine.uring_disabled);
  result["seccomp"] = machine.seccomp;
  result["memory_available"] = machine.memory_available;
  result["memory_limit"] = machine.memory_limit;
  result["memory_limited_by_cgroup"] = machine.memory_limited_by_cgroup;
  result["locked_memory_limit"] = limit_object(machine.locked_memory_limit);
  result["open_files_limit"] = limit_object(machine.open_files_limit);
  result["open_files"] = machine.open_files;
  result["huge_pages"] = machine.huge_pages;
  result["environment"] = machine.environment;
  return result;
}

nb::dict diagnosis_dict(const Diagnosis& diagnosis) {
  nb::dict result;
  result["tensors"] = diagnosis.tensors;
  result["bytes"] = diagnosis.bytes;
  result["tensors_misaligned"] = diagnosis.tensors_misaligned;
  result["bytes_misaligned"] = diagnosis.bytes_misaligned;
  result["tensors_scattered"] = diagnosis.tensors_scattered;
  result["open_seconds"] = diagnosis.open_seconds;
  nb::list files;
  for (const FileDiagnosis& file : diagnosis.files) files.append(file_dict(file));
  result["files"] = files;
  result["now"] = forecast_dict(diagnosis.now);
  result["cold"] = forecast_object(diagnosis.cold);
  result["cold_reused"] = forecast_object(diagnosis.cold_reused);
  result["staging_bytes"] = diagnosis.staging_bytes;
  result["staging_registered"] = diagnosis.staging_registered;
  result["open_files_needed"] = diagnosis.open_files_needed;
  result["machine"] = machine_dict(diagnosis.machine);
  nb::list advice;
  for (const Advice& each : diagnosis.advice) advice.append(nb::make_tuple(each.topic, each.problem, each.remedy));
  result["advice"] = advice;
  return result;
}

}  // namespace

void bind_doctor(nb::module_& module) {
  module.def(
      "diagnose",
      [](const std::filesystem::path& path, const LoadOptions& options) {
        Diagnosis diagnosis;
        {
          GilRelease release;
          diagnosis = diagnose(path, options);
        }
        return diagnosis_dict(diagnosis);
      },
      nb::arg("path"), nb::arg("options"),
      nb::sig("def diagnose(path: str | os.PathLike[str], options: LoadOptions) -> dict[str, typing.Any]"));
}

}  // namespace penstock::python
