#include "callbacks.h"

#include <algorithm>
#include <chrono>

namespace penstock::python {
namespace {

constexpr double kStepSeconds = 0.05;

// Python delivers signals to its main thread only.
bool is_main_thread() {
  nb::object main_thread = nb::module_::import_("threading").attr("main_thread")();
  return nb::cast<unsigned long>(main_thread.attr("ident")) == PyThread_get_thread_ident();
}

void check_signals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace

std::shared_ptr<Callbacks> Callbacks::create(nb::object progress) {
  auto callbacks = std::make_shared<Callbacks>();
  if (!progress.is_none()) callbacks->progress_ = std::move(progress);
  return callbacks;
}

ProgressFunction Callbacks::function(const std::shared_ptr<Callbacks>& self) {
  return [self](const Progress& progress) { return self->tick(progress); };
}

void Callbacks::begin() {
  on_main_thread_ = outlive_python(is_main_thread);
}

bool Callbacks::tick(const Progress& progress) {
  if (!on_main_thread_ && !progress_.is_valid()) return true;
  GilAcquire acquire;
  return outlive_python([&] { return tick_with_gil(progress); });
}

bool Callbacks::tick_with_gil(const Progress& progress) {
  if (raised_) return false;
  try {
    check_signals();
    if (!progress_.is_valid()) return true;
    nb::object answer = progress_(progress.bytes_done, progress.bytes_total);
    return !answer.is(nb::bool_(false));
  } catch (nb::python_error& error) {
    raised_.emplace(std::move(error));
    return false;
  }
}

void Callbacks::throw_raised() {
  if (!raised_) return;
  nb::python_error error = std::move(*raised_);
  raised_.reset();
  throw error;
}

bool wait_interruptibly(std::optional<double> timeout, const std::function<bool(double)>& wait) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (;;) {
    double step = kStepSeconds;
    if (timeout) step = std::min(step, *timeout - std::chrono::duration<double>(Clock::now() - start).count());
    bool over = false;
    {
      GilRelease release;
      over = wait(std::max(step, 0.0));
    }
    if (over) return true;
    check_signals();
    if (step <= 0) return false;
  }
}

}  // namespace penstock::python
