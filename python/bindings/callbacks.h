// Callbacks: Python in the middle of a long piece of work that runs without the GIL.
//
// The engine asks its progress function about thirty times a second, on the thread that waits for the work. That is
// where a pending Ctrl-C is noticed and where the caller's progress callable is run. What either raises stops the work
// and is raised again when it has ended: a KeyboardInterrupt arrives as such. So is what Python raises while it
// produces bytes that are to be written, on any thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "bindings.h"

namespace penstock::python {

class Callbacks {
 public:
  // `progress` is None or a callable that takes (bytes_done, bytes_total) and may return False to stop.
  static std::shared_ptr<Callbacks> create(nb::object progress);

  // For the options of the work. Keeps `self` alive; does nothing, without the GIL, outside run().
  static ProgressFunction function(const std::shared_ptr<Callbacks>& self);

  // The bytes of a tensor that Python hands over in pieces: read(offset, nbytes, address) puts them there.
  static FillFunction fill(const std::shared_ptr<Callbacks>& self, nb::object read);

  // For work that calls back into Python otherwise: `call`, with the GIL. What it raises stops the work, and is an
  // error of that kind to the engine.
  template <typename Call>
  auto guard(ErrorKind kind, Call call) {
    return [this, kind, call = std::move(call)](auto&&... arguments) {
      GilAcquire acquire;
      outlive_python([&] {
        try {
          call(std::forward<decltype(arguments)>(arguments)...);
        } catch (nb::python_error& error) {
          raised_.emplace(std::move(error));
          throw Error(kind, describe_raised());
        }
      });
    };
  }

  // Runs `work` without the GIL.
  template <typename Work>
  auto run(Work&& work) {
    begin();
    return translate([&] { return release_and_call(work); });
  }

  // Runs `work`, and raises what Python has raised in it rather than what the engine made of that.
  template <typename Work>
  auto translate(Work&& work) {
    try {
      if constexpr (std::is_void_v<std::invoke_result_t<Work>>) {
        work();
        throw_raised();
      } else {
        auto result = work();
        throw_raised();
        return result;
      }
    } catch (const Error&) {
      throw_raised();
      throw;
    }
  }

 private:
  template <typename Work>
  static auto release_and_call(Work& work) {
    GilRelease release;
    return work();
  }

  void begin();
  bool tick(const Progress& progress);
  bool tick_with_gil(const Progress& progress);
  void read_with_gil(const nb::object& read, std::uint64_t offset, std::span<std::byte> bytes);
  void throw_raised();
  std::string describe_raised() const;

  nb::object progress_;  // null when there is none: a null handle may be dropped without the GIL
  bool on_main_thread_ = false;
  std::optional<nb::python_error> raised_;
};

// Waits in steps, without the GIL, and looks for Ctrl-C between them. `wait(seconds)` says whether it is over. Returns
// false after `timeout` seconds.
bool wait_interruptibly(std::optional<double> timeout, const std::function<bool(double)>& wait);

}  // namespace penstock::python
