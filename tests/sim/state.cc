#include "state.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "calls.h"

namespace sim {
namespace {

constexpr std::size_t kMostViolations = 1000;  // that are kept; all are counted

// $PENSTOCK_SIM_REPORT: a file that gets what was wrong in a process that ends, for tests of programs.
void report_at_exit() {
  const char* const path = std::getenv("PENSTOCK_SIM_REPORT");
  if (path == nullptr || is_forked()) {
    return;
  }
  std::vector<char> lines(1 << 20);
  std::ofstream report(path, std::ios::app);
  if (sim_violations(lines.data(), lines.size()) > 0) {
    report << lines.data();
  }
  if (sim_leaks(SIM_DEVICE_MEMORY | SIM_STREAMS | SIM_EVENTS | SIM_FILES, lines.data(), lines.size()) > 0) {
    report << lines.data();
  }
}

}  // namespace

State::State() : settings(settings_from_environment()) {
  for (int device = 0; device < kMostDevices; ++device) {
    devices[device].context.device = device;
  }
  const char* const failures = std::getenv("PENSTOCK_SIM_FAIL");
  if (failures != nullptr && !arm_failures(failures)) {
    std::fprintf(stderr, "simulated accelerator: PENSTOCK_SIM_FAIL=%s is no list of failures\n", failures);
    std::abort();
  }
  std::atexit(report_at_exit);
}

State& state() {
  static State& made = *new State;
  return made;
}

void violation(const char* symbol, const std::string& what) {
  State& all = state();
  ++all.counters.violations;
  if (all.violations.size() < kMostViolations) {
    all.violations.push_back(text(symbol, ": ", what));
  }
}

std::vector<Handle>& context_stack() {
  thread_local std::vector<Handle> stack;
  return stack;
}

Context* find_context(Handle handle) {
  for (Device& device : state().devices) {
    if (device.context.handle() == handle && device.context.null_stream != nullptr) {
      return &device.context;
    }
  }
  return nullptr;
}

Context* find_current() {
  const std::vector<Handle>& stack = context_stack();
  return stack.empty() ? nullptr : find_context(stack.back());
}

Result current_context(const char* symbol, Context*& context) {
  context = find_current();
  if (context == nullptr) {
    violation(symbol, "no context is current on this thread");
    return kInvalidContext;
  }
  if (context->retained == 0) {
    violation(symbol, text("the context of device ", context->device, " was released"));
    return kInvalidContext;
  }
  return context->lost;
}

Result find_stream(const char* symbol, Handle handle, Context& context, std::shared_ptr<Stream>& stream) {
  if (reinterpret_cast<std::uintptr_t>(handle) <= 2) {  // null, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD
    stream = context.null_stream;
    return kSuccess;
  }
  const auto found = state().streams.find(handle);
  if (found == state().streams.end()) {
    violation(symbol, text("stream ", handle, " does not exist"));
    return kInvalidHandle;
  }
  if (found->second->context != &context) {
    violation(symbol, text("the stream is of device ", found->second->context->device, ", the context of device ",
                           context.device));
    return kInvalidHandle;
  }
  stream = found->second;
  return kSuccess;
}

}  // namespace sim
