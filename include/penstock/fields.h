// The fields of the public structs, by name: the one list that the Python module, the JSON of the command and whoever
// else translates these structs go through.
//
//   visit_fields(stats, [&](const char* name, const auto& value) { ... });
//
// A visitor of options may change them: it is given references to the fields of a struct that is not const. A field
// that is added to a struct is added here too; a test counts them.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "penstock/convert.h"
#include "penstock/doctor.h"
#include "penstock/export.h"
#include "penstock/measure.h"
#include "penstock/options.h"
#include "penstock/seal.h"
#include "penstock/stream_file.h"

namespace PENSTOCK_EXPORT penstock {

template <typename Given, typename Struct>
concept MaybeConst = std::same_as<std::remove_const_t<Given>, Struct>;

// ---- Options. Names are those of the Python arguments.

template <MaybeConst<IoOptions> Options, typename Visitor>
void visit_fields(Options& options, Visitor&& visit) {
  visit("backend", options.backend);
  visit("block_size", options.block_size);
  visit("queue_depth", options.queue_depth);
  visit("threads", options.threads);
  visit("memory_budget", options.memory_budget);
}

template <MaybeConst<LoadOptions> Options, typename Visitor>
void visit_fields(Options& options, Visitor&& visit) {
  visit("select", options.select);
  visit("parts", options.parts);
  visit("dtype", options.dtype);
  visit("verify", options.verify);
  visit("cache", options.cache);
  visit("landing", options.landing);
  visit("io", options.io);
  visit("pool", options.pool);
  visit("allocate", options.allocate);
  visit("streams", options.streams);
  visit("gds", options.gds);
  visit("max_buffer", options.max_buffer);
  visit("progress", options.progress);
  visit("placed", options.placed);
}

template <MaybeConst<FlashPackOptions> Options, typename Visitor>
void visit_fields(Options& options, Visitor&& visit) {
  visit("align_bytes", options.align_bytes);
  visit("keep_order", options.keep_order);
  visit("align_large", options.align_large);
}

template <MaybeConst<TorchOptions> Options, typename Visitor>
void visit_fields(Options& options, Visitor&& visit) {
  visit("record_alignment", options.alignment);
  visit("record_checksums", options.checksums);
  visit("pickle", options.pickle);
  visit("around_pickle", options.around_pickle);
}

template <MaybeConst<SaveOptions> Options, typename Visitor>
void visit_fields(Options& options, Visitor&& visit) {
  visit("format", options.format);
  visit("dtype", options.dtype);
  visit("flashpack", options.flashpack);
  visit("torch", options.torch);
  visit("metadata", options.metadata);
  visit("empty_metadata", options.empty_metadata);
  visit("max_shard_size", options.max_shard_size);
  visit("checksums", options.checksums);
  visit("shared", options.shared);
  visit("durable", options.durable);
  visit("method", options.method);
  visit("landing", options.landing);
  visit("io", options.io);
  visit("streams", options.streams);
  visit("gds", options.gds);
  visit("progress", options.progress);
}

template <MaybeConst<StreamOptions> Options, typename Visitor>
void visit_fields(Options& options, Visitor&& visit) {
  visit("durable", options.durable);
  visit("method", options.method);
  visit("overlap", options.overlap);
  visit("max_staging", options.max_staging);
  visit("io", options.io);
}

template <MaybeConst<VerifyOptions> Options, typename Visitor>
void visit_fields(Options& options, Visitor&& visit) {
  visit("finite", options.finite);
  visit("checksums", options.checksums);
  visit("compute", options.compute);
  visit("io", options.io);
  visit("progress", options.progress);
}

template <MaybeConst<SealOptions> Options, typename Visitor>
void visit_fields(Options& options, Visitor&& visit) {
  visit("sha256", options.sha256);
  visit("block_size", options.block_size);
  visit("durable", options.durable);
  visit("io", options.io);
  visit("progress", options.progress);
}

// ---- What was done.

template <typename Visitor>
void visit_fields(const Stats& stats, Visitor&& visit) {
  visit("bytes", stats.bytes);
  visit("seconds", stats.seconds);
  visit("sync_seconds", stats.sync_seconds);
  visit("tensors", stats.tensors);
  visit("tensors_moved", stats.tensors_moved);
  visit("bytes_direct", stats.bytes_direct);
  visit("bytes_buffered", stats.bytes_buffered);
  visit("bytes_mapped", stats.bytes_mapped);
  visit("bytes_copied", stats.bytes_copied);
  visit("bytes_on_drive", stats.bytes_on_drive);
  visit("requests", stats.requests);
  visit("resumed", stats.resumed);
  visit("path", stats.path);
  visit("landing", stats.landing);
  visit("backend", stats.backend);
  visit("block_size", stats.block_size);
  visit("queue_depth", stats.queue_depth);
  visit("threads", stats.threads);
  visit("reason", stats.reason);
  visit("device", stats.device);
  visit("pinning", stats.pinning);
  visit("gds", stats.gds);
  visit("bytes_gds", stats.bytes_gds);
  visit("phases", stats.phases);
}

template <typename Visitor>
void visit_fields(const ConvertStats& stats, Visitor&& visit) {
  visit_fields(static_cast<const Stats&>(stats), visit);
  visit("notes", stats.notes);
}

template <typename Visitor>
void visit_fields(const StreamStats& stats, Visitor&& visit) {
  visit("bytes", stats.bytes);
  visit("bytes_written", stats.bytes_written);
  visit("bytes_slow", stats.bytes_slow);
  visit("writes", stats.writes);
  visit("fills", stats.fills);
  visit("fill_seconds", stats.fill_seconds);
  visit("write_seconds", stats.write_seconds);
  visit("slow_seconds", stats.slow_seconds);
  visit("sync_seconds", stats.sync_seconds);
  visit("seconds", stats.seconds);
  visit("path", stats.path);
  visit("backend", stats.backend);
}

template <typename Visitor>
void visit_fields(const Throughput& throughput, Visitor&& visit) {
  visit("bytes", throughput.bytes);
  visit("seconds", throughput.seconds);
  visit("method", throughput.method);
  visit("backend", throughput.backend);
}

// A CRC-32C that may be missing. It has a type of its own because text shows it in hexadecimal digits.
struct ChecksumField {
  std::optional<std::uint32_t> value;
};

template <typename Visitor>
void visit_fields(const VerifiedTensor& tensor, Visitor&& visit) {
  visit("name", tensor.name);
  visit("ok", tensor.ok);
  visit("crc32c", ChecksumField{tensor.crc32c});
  visit("expected_crc32c", ChecksumField{tensor.expected_crc32c});
  visit("not_finite", tensor.not_finite);
}

template <typename Visitor>
void visit_fields(const OpaqueValue& value, Visitor&& visit) {
  visit("path", value.path);
  visit("name", value.name);
}

template <typename Visitor>
void visit_fields(const VerifyReport& report, Visitor&& visit) {
  visit("ok", report.ok);
  visit("problems", report.problems);
  visit("bytes", report.bytes);
  visit("bytes_read", report.bytes_read);
  visit("seconds", report.seconds);
  visit("had_checksums", report.had_checksums);
  visit("against", report.against);
  visit("tensors", report.tensors);
  visit("opaque", report.opaque);
}

template <typename Visitor>
void visit_fields(const SealedFile& file, Visitor&& visit) {
  visit("path", file.path);
  visit("seal", file.seal);
  visit("nbytes", file.nbytes);
  visit("sha256", file.sha256);
}

template <typename Visitor>
void visit_fields(const SealReport& report, Visitor&& visit) {
  visit("files", report.files);
  visit("bytes", report.bytes);
  visit("seconds", report.seconds);
}

// ---- What would be done.

template <typename Visitor>
void visit_fields(const FileDiagnosis& file, Visitor&& visit) {
  visit("path", file.path);
  visit("size", file.size);
  visit("format", file.format);
  visit("filesystem", file.filesystem);
  visit("device", file.device);
  visit("local", file.local);
  visit("in_memory", file.in_memory);
  visit("virtual_drive", file.virtual_drive);
  visit("read_ahead", file.read_ahead);
  visit("read_ahead_setting", file.read_ahead_setting);
  visit("direct", file.direct);
  visit("offset_alignment", file.offset_alignment);
  visit("memory_alignment", file.memory_alignment);
  visit("alignment_reported", file.alignment_reported);
  visit("direct_refusal", file.direct_refusal);
  visit("direct_error", file.direct_error);
  visit("span", file.span);
  visit("resident_bytes", file.resident_bytes);
  visit("residency_source", file.residency_source);
  visit("extents", file.extents);
}

// The statistics are not nested: a forecast reads like the statistics of the load.
template <typename Visitor>
void visit_fields(const Forecast& forecast, Visitor&& visit) {
  visit_fields(forecast.stats, visit);
  visit("mapping", forecast.mapping);
  visit("backend_reason", forecast.backend_reason);
  visit("bytes_dropped", forecast.bytes_dropped);
  visit("mapped", forecast.mapped);
  visit("may_stage", forecast.may_stage);
  visit("uses_uring", forecast.uses_uring);
  visit("uses_threads", forecast.uses_threads);
}

// A limit as something that may be missing.
inline std::optional<std::uint64_t> limit_field(std::uint64_t limit) {
  return limit == Machine::kUnlimited ? std::nullopt : std::optional(limit);
}

template <typename Visitor>
void visit_fields(const Machine& machine, Visitor&& visit) {
  visit("kernel", machine.kernel);
  visit("uring", machine.uring);
  visit("uring_error", machine.uring_error);
  visit("uring_disabled", machine.uring_disabled);
  visit("seccomp", machine.seccomp);
  visit("memory_available", machine.memory_available);
  visit("memory_limit", machine.memory_limit);
  visit("memory_limited_by_cgroup", machine.memory_limited_by_cgroup);
  visit("locked_memory_limit", limit_field(machine.locked_memory_limit));
  visit("open_files_limit", limit_field(machine.open_files_limit));
  visit("open_files", machine.open_files);
  visit("huge_pages", machine.huge_pages);
  visit("environment", machine.environment);
}

template <typename Visitor>
void visit_fields(const DeviceInfo& device, Visitor&& visit) {
  visit("number", device.number);
  visit("name", device.name);
  visit("total_memory", device.total_memory);
  visit("numa_node", device.numa_node);
  visit("unified", device.unified);
}

template <typename Visitor>
void visit_fields(const Devices& devices, Visitor&& visit) {
  visit("found", devices.found);
  visit("why_none", devices.why_none);
  visit("driver", devices.driver);
  visit("pinned_limit", devices.pinned_limit);
  visit("gds_obstacle", devices.gds_obstacle);
}

template <typename Visitor>
void visit_fields(const Advice& advice, Visitor&& visit) {
  visit("topic", advice.topic);
  visit("problem", advice.problem);
  visit("remedy", advice.remedy);
}

template <typename Visitor>
void visit_fields(const Diagnosis& diagnosis, Visitor&& visit) {
  visit("tensors", diagnosis.tensors);
  visit("bytes", diagnosis.bytes);
  visit("tensors_misaligned", diagnosis.tensors_misaligned);
  visit("bytes_misaligned", diagnosis.bytes_misaligned);
  visit("tensors_scattered", diagnosis.tensors_scattered);
  visit("open_seconds", diagnosis.open_seconds);
  visit("files", diagnosis.files);
  visit("now", diagnosis.now);
  visit("cold", diagnosis.cold);
  visit("cold_reused", diagnosis.cold_reused);
  visit("staging_bytes", diagnosis.staging_bytes);
  visit("staging_registered", diagnosis.staging_registered);
  visit("open_files_needed", diagnosis.open_files_needed);
  visit("machine", diagnosis.machine);
  visit("devices", diagnosis.devices);
  visit("advice", diagnosis.advice);
}

// A struct whose fields are listed above.
template <typename Struct>
concept Listed = requires(const Struct& value) {
  visit_fields(value, [](const char*, const auto&) {});
};

}  // namespace penstock
