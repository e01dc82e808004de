#include "bindings.h"

namespace penstock::python {

nb::dict stats_dict(const Stats& stats) {
  nb::dict result;
  result["path"] = stats.path;
  result["landing"] = stats.landing;
  result["backend"] = stats.backend;
  result["bytes"] = stats.bytes;
  result["seconds"] = stats.seconds;
  result["sync_seconds"] = stats.sync_seconds;
  result["tensors"] = stats.tensors;
  result["tensors_moved"] = stats.tensors_moved;
  result["requests"] = stats.requests;
  result["resumed"] = stats.resumed;
  result["bytes_direct"] = stats.bytes_direct;
  result["bytes_buffered"] = stats.bytes_buffered;
  result["bytes_mapped"] = stats.bytes_mapped;
  result["bytes_copied"] = stats.bytes_copied;
  result["bytes_on_device"] = stats.bytes_on_device;
  result["block_size"] = stats.block_size;
  result["queue_depth"] = stats.queue_depth;
  result["threads"] = stats.threads;
  result["reason"] = stats.reason;
  nb::dict phases;
  for (const Phase& phase : stats.phases) phases[nb::cast(phase.name)] = phase.seconds;
  result["phases"] = phases;
  return result;
}

}  // namespace penstock::python
