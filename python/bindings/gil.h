// Leaving Python and coming back, in a thread that may outlive the interpreter.
//
// Up to Python 3.13 a thread that asks for the GIL while the interpreter shuts down is ended there and then, by an
// unwinding that no destructor and no catch (...) may stop: the process would be aborted. Here such a thread sleeps
// instead, until the process is gone.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <utility>

namespace penstock::python {

// Runs what may take the GIL; does not return when the interpreter has ended.
template <typename Call>
auto outlive_python(Call&& call) {
  try {
    return call();
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
}

// Lets other threads run Python for as long as it lives.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()), outer_(std::exchange(released_, state_)) {}
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease() {
    released_ = outer_;
    outlive_python([this] { PyEval_RestoreThread(state_); });
  }

 private:
  friend class GilAcquire;
  // What this thread will run Python with again; null while it does.
  static inline thread_local PyThreadState* released_ = nullptr;

  PyThreadState* state_;
  PyThreadState* outer_;
};

// The way back, for a while, on any thread.
//
// A thread that came from Python goes back with the state that it left with: that one may be asked for even when the
// interpreter is gone. PyGILState_Ensure would then look for an interpreter to make a new one in, and crash.
class GilAcquire {
 public:
  GilAcquire() : returning_(std::exchange(GilRelease::released_, nullptr)) {
    if (returning_ != nullptr) {
      outlive_python([this] { PyEval_RestoreThread(returning_); });
    } else {
      while (Py_IsInitialized() == 0) pause();
      state_ = outlive_python([] { return PyGILState_Ensure(); });
    }
  }
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;
  ~GilAcquire() {
    if (returning_ != nullptr) {
      GilRelease::released_ = PyEval_SaveThread();
    } else {
      PyGILState_Release(state_);
    }
  }

 private:
  PyThreadState* returning_;
  PyGILState_STATE state_{};
};

// Lets go of what belongs to Python, on whatever thread has it last. When the process ends, its memory ends with it.
template <typename LetGo>
void let_go_with_gil(LetGo&& let_go) {
  if (Py_IsInitialized() == 0) return;
  GilAcquire acquire;
  let_go();
}

// Keeps the garbage collector from looking again and again through thousands of objects that are being made.
class CollectorPause {
 public:
  CollectorPause() : was_enabled_(PyGC_Disable() != 0) {}
  CollectorPause(const CollectorPause&) = delete;
  CollectorPause& operator=(const CollectorPause&) = delete;
  ~CollectorPause() {
    if (was_enabled_) PyGC_Enable();
  }

 private:
  bool was_enabled_;
};

}  // namespace penstock::python
