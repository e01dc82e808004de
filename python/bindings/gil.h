// Leaving Python and coming back, in a thread that may outlive the interpreter.
//
// Up to Python 3.13 a thread that asks for the GIL while the interpreter shuts down is ended there and then, by an
// unwinding that no destructor and no catch (...) may stop: the process would be aborted. Here such a thread sleeps
// instead, until the process is gone.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

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
  GilRelease() : state_(PyEval_SaveThread()) {}
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease() {
    outlive_python([this] { PyEval_RestoreThread(state_); });
  }

 private:
  PyThreadState* state_;
};

// The way back, for a while.
class GilAcquire {
 public:
  GilAcquire() : state_(outlive_python([] { return PyGILState_Ensure(); })) {}
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;
  ~GilAcquire() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

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
