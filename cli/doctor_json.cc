#include "doctor_json.h"

#include "checkpoint.h"
#include "json.h"

namespace penstock::cli {
namespace {

template <typename T>
void optional_field(JsonWriter& json, std::string_view name, const std::optional<T>& content) {
  json.key(name);
  content ? json.value(*content) : json.null();
}

void limit_field(JsonWriter& json, std::string_view name, std::uint64_t limit) {
  json.key(name);
  limit == Machine::kUnlimited ? json.null() : json.value(limit);
}

void write_file(JsonWriter& json, const FileDiagnosis& file) {
  json.begin_object();
  json.field("path", file.path.string());
  json.field("size", file.size);
  json.field("format", file.format);
  json.field("filesystem", file.filesystem);
  json.field("device", file.device);
  json.field("local", file.local);
  json.field("in_memory", file.in_memory);
  json.field("virtual_drive", file.virtual_drive);
  optional_field(json, "read_ahead", file.read_ahead);
  json.field("read_ahead_setting", file.read_ahead_setting);
  json.field("direct", file.direct);
  json.field("offset_alignment", file.offset_alignment);
  json.field("memory_alignment", file.memory_alignment);
  json.field("alignment_reported", file.alignment_reported);
  json.field("direct_refusal", file.direct_refusal);
  json.field("span", file.span);
  json.field("resident_bytes", file.resident_bytes);
  json.field("residency_source", file.residency_source);
  optional_field(json, "extents", file.extents);
  json.end_object();
}

void write_forecast(JsonWriter& json, const Forecast& forecast) {
  json.begin_object();
  write_stats(json, forecast.stats);
  json.field("mapping", forecast.mapping);
  json.field("backend_reason", forecast.backend_reason);
  json.field("bytes_dropped", forecast.bytes_dropped);
  json.end_object();
}

void write_forecast(JsonWriter& json, std::string_view name, const std::optional<Forecast>& forecast) {
  json.key(name);
  forecast ? write_forecast(json, *forecast) : json.null();
}

void write_machine(JsonWriter& json, const Machine& machine) {
  json.begin_object();
  json.field("kernel", machine.kernel);
  json.field("uring", machine.uring);
  json.field("uring_error", machine.uring_error);
  optional_field(json, "uring_disabled", machine.uring_disabled);
  json.field("seccomp", machine.seccomp);
  json.field("memory_available", machine.memory_available);
  json.field("memory_limit", machine.memory_limit);
  json.field("memory_limited_by_cgroup", machine.memory_limited_by_cgroup);
  limit_field(json, "locked_memory_limit", machine.locked_memory_limit);
  limit_field(json, "open_files_limit", machine.open_files_limit);
  json.field("open_files", machine.open_files);
  json.field("huge_pages", machine.huge_pages);
  json.key("environment");
  json.begin_array();
  for (const std::string& setting : machine.environment) json.value(setting);
  json.end_array();
  json.end_object();
}

void write_advice(JsonWriter& json, const Advice& advice) {
  json.begin_object();
  json.field("topic", advice.topic);
  json.field("problem", advice.problem);
  json.field("remedy", advice.remedy);
  json.end_object();
}

}  // namespace

std::string diagnosis_json(const Diagnosis& diagnosis, const std::string& path) {
  JsonWriter json;
  json.begin_object();
  json.field("path", path);
  json.field("tensors", diagnosis.tensors);
  json.field("bytes", diagnosis.bytes);
  json.field("tensors_misaligned", diagnosis.tensors_misaligned);
  json.field("bytes_misaligned", diagnosis.bytes_misaligned);
  json.field("tensors_scattered", diagnosis.tensors_scattered);
  json.field("open_seconds", diagnosis.open_seconds);
  json.key("files");
  json.begin_array();
  for (const FileDiagnosis& file : diagnosis.files) write_file(json, file);
  json.end_array();
  write_forecast(json, "now", diagnosis.now);
  write_forecast(json, "cold", diagnosis.cold);
  write_forecast(json, "cold_reused", diagnosis.cold_reused);
  json.field("staging_bytes", diagnosis.staging_bytes);
  json.field("staging_registered", diagnosis.staging_registered);
  json.field("open_files_needed", diagnosis.open_files_needed);
  json.key("machine");
  write_machine(json, diagnosis.machine);
  json.key("advice");
  json.begin_array();
  for (const Advice& advice : diagnosis.advice) write_advice(json, advice);
  json.end_array();
  json.end_object();
  return json.take();
}

}  // namespace penstock::cli
