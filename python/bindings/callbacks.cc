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

// In one line, for those who wait for a save in the background and never see the exception itself.
std::string describe(const nb::python_error& error) {
  const std::string type = nb::cast<std::string>(error.type().attr("__name__"));
  const nb::object text = nb::steal(PyObject_Str(error.value().ptr()));
  const nb::object bytes =
      text.is_valid() ? nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "replace")) : nb::object();
  if (!bytes.is_valid()) {
    PyErr_Clear();  // an exception that can't say what it is
    return type;
  }
  const std::string_view message(PyBytes_AsString(bytes.ptr()), nb::len(bytes));
  return type + ": " + std::string(message.substr(0, message.find('\n')));
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

FillFunction Callbacks::fill(const std::shared_ptr<Callbacks>& self, nb::object read) {
  // The last copy of the function may go on a thread that has no GIL.
  const std::shared_ptr<nb::object> held(
      new nb::object(std::move(read)), [](const nb::object* object) { let_go_with_gil([object] { delete object; }); });
  return [self, held](std::uint64_t offset, std::span<std::byte> bytes) {
    GilAcquire acquire;
    outlive_python([&] { self->read_with_gil(*held, offset, bytes); });
  };
}

void Callbacks::read_with_gil(const nb::object& read, std::uint64_t offset, std::span<std::byte> bytes) {
  try {
    if (!raised_) return void(read(offset, bytes.size(), reinterpret_cast<std::uintptr_t>(bytes.data())));
  } catch (nb::python_error& error) {
    if (!raised_) raised_.emplace(std::move(error));
  }
  throw Error(ErrorKind::kIo, describe_raised());
}

std::string Callbacks::describe_raised() const {
  return describe(*raised_);
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
