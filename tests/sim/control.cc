// sim.h: what tests set and ask.
#include <algorithm>
#include <cstring>

#include "calls.h"
#include "sim.h"
#include "state.h"

namespace {

size_t write_lines(const std::vector<std::string>& lines, char* buffer, size_t nbytes) {
  if (buffer != nullptr && nbytes > 0) {
    std::string all;
    for (const std::string& line : lines) {
      all += line + "\n";
    }
    const size_t fits = std::min(all.size(), nbytes - 1);
    std::memcpy(buffer, all.data(), fits);
    buffer[fits] = '\0';
  }
  return lines.size();
}

// With the state locked; so is all below.
void list_memory(int kinds, std::vector<std::string>& lines) {
  for (const auto& [start, memory] : sim::state().memory) {
    if ((kinds & (memory->of_host() ? SIM_PINNED_MEMORY : SIM_DEVICE_MEMORY)) != 0) {
      lines.push_back(sim::text(memory->nbytes, " bytes of ", sim::name_of(memory->kind), " made on device ",
                                memory->device, " are not freed"));
    }
  }
}

void list_handles(int kinds, std::vector<std::string>& lines) {
  const sim::State& all = sim::state();
  const auto add = [&](int kind, size_t count, const char* what) {
    if ((kinds & kind) != 0 && count > 0) {
      lines.push_back(sim::text(count, " ", what));
    }
  };
  add(SIM_STREAMS, all.streams.size(), "streams are not destroyed");
  add(SIM_EVENTS, all.events.size(), "events are not destroyed");
  add(SIM_FILES, all.files.size(), "cuFile handles are not deregistered");
  add(SIM_FILES, all.file_buffers.size(), "cuFile buffers are not deregistered");
  for (const sim::Device& device : all.devices) {
    if ((kinds & SIM_CONTEXTS) != 0 && device.context.retained > 0) {
      lines.push_back(sim::text("the context of device ", device.context.device, " is retained ",
                                device.context.retained, " times"));
    }
  }
}

void clear_counters() {
  sim_counters& counters = sim::state().counters;
  sim_counters fresh{};
  fresh.copies_queued = counters.copies_queued;
  fresh.pinned_bytes = fresh.pinned_bytes_peak = counters.pinned_bytes;
  fresh.device_bytes = fresh.device_bytes_peak = counters.device_bytes;
  fresh.managed_bytes = counters.managed_bytes;
  fresh.violations = counters.violations;
  std::copy(std::begin(counters.contexts_made), std::end(counters.contexts_made), fresh.contexts_made);
  counters = fresh;
}

void clear_violations() {
  sim::state().violations.clear();
  sim::state().counters.violations = 0;
}

void set_hold(bool hold) {
  sim::State& all = sim::state();
  all.hold = hold;
  for (sim::Stream* const stream : all.running) {
    stream->arrived.notify_all();
  }
}

std::byte* reach(uint64_t address, size_t nbytes) {
  const sim::SharedMemory memory = sim::find_memory(address);
  if (memory == nullptr || memory->of_host() || nbytes > memory->start + memory->nbytes - address) {
    return nullptr;
  }
  return memory->bytes + (address - memory->start);
}

}  // namespace

extern "C" {

SIM_EXPORT int sim_set(const char* name, const char* value) {
  const std::lock_guard lock(sim::state().mutex);
  sim::Settings settings = sim::state().settings;
  if (!sim::set(settings, name, value)) {
    return -1;
  }
  sim::state().settings = settings;
  return 0;
}

SIM_EXPORT void sim_reset(void) {
  sim::State& all = sim::state();
  sim::disarm_failures();
  const std::lock_guard lock(all.mutex);
  all.settings = sim::settings_from_environment();
  for (sim::Device& device : all.devices) {
    device.context.lost = sim::kSuccess;
  }
  clear_violations();
  clear_counters();
  set_hold(false);
}

SIM_EXPORT int sim_fail(const char* what) {
  sim::state();
  if (what == nullptr || *what == '\0') {
    sim::disarm_failures();
    return 0;
  }
  return sim::arm_failures(what) ? 0 : -1;
}

SIM_EXPORT uint64_t sim_calls(const char* symbol) {
  return sim::count_calls(symbol);
}

SIM_EXPORT uint64_t sim_copy_cpu_ns(void) {
  return static_cast<uint64_t>(sim::cpu_ns());
}

SIM_EXPORT void sim_hold(int hold) {
  const std::lock_guard lock(sim::state().mutex);
  set_hold(hold != 0);
}

SIM_EXPORT void sim_read_counters(sim_counters* counters) {
  sim::State& all = sim::state();
  const std::lock_guard lock(all.mutex);
  *counters = all.counters;
  counters->streams = all.streams.size();
  counters->events = all.events.size();
  counters->file_handles = all.files.size();
  counters->file_buffers = all.file_buffers.size();
  counters->calls_after_fork = sim::count_calls_after_fork();
  for (const sim::Device& device : all.devices) {
    counters->contexts += device.context.retained > 0 ? 1 : 0;
  }
}

SIM_EXPORT void sim_clear_counters(void) {
  const std::lock_guard lock(sim::state().mutex);
  clear_counters();
}

SIM_EXPORT size_t sim_violations(char* buffer, size_t nbytes) {
  const std::lock_guard lock(sim::state().mutex);
  const auto& violations = sim::state().violations;
  return write_lines({violations.begin(), violations.end()}, buffer, nbytes);
}

SIM_EXPORT void sim_clear_violations(void) {
  const std::lock_guard lock(sim::state().mutex);
  clear_violations();
}

SIM_EXPORT size_t sim_leaks(int kinds, char* buffer, size_t nbytes) {
  const std::lock_guard lock(sim::state().mutex);
  std::vector<std::string> lines;
  list_memory(kinds, lines);
  list_handles(kinds, lines);
  return write_lines(lines, buffer, nbytes);
}

SIM_EXPORT int sim_peek(void* to, uint64_t address, size_t nbytes) {
  if (nbytes == 0) return 0;
  const std::lock_guard lock(sim::state().mutex);
  const std::byte* const from = reach(address, nbytes);
  if (from == nullptr) {
    return -1;
  }
  std::memcpy(to, from, nbytes);
  return 0;
}

SIM_EXPORT int sim_poke(uint64_t address, const void* from, size_t nbytes) {
  if (nbytes == 0) return 0;
  const std::lock_guard lock(sim::state().mutex);
  std::byte* const to = reach(address, nbytes);
  if (to == nullptr) {
    return -1;
  }
  std::memcpy(to, from, nbytes);
  return 0;
}

}  // extern "C"
