// SimulatedDevices: the simulated accelerator (tests/sim) in this process, for one test.
//
//   SimulatedDevices sim;              // libcuda.so.1 and libcufile.so.0 are the simulated ones from here on
//   sim.set("link", 1'000'000'000);
//   ...
//   EXPECT_EQ(sim.counters().pageable_copies, 0);
//                                      // when it goes out of scope: nothing was done wrong, nothing leaked
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim.h"

namespace penstock::testing {

class SimulatedDevices {
 public:
  // Settings are those of the environment again, counters and violations of earlier tests are gone. Throws
  // std::runtime_error when the libraries were not built.
  SimulatedDevices();
  ~SimulatedDevices();
  SimulatedDevices(const SimulatedDevices&) = delete;
  SimulatedDevices& operator=(const SimulatedDevices&) = delete;

  // By the names of tests/sim/README.md. Throws std::invalid_argument.
  void set(const std::string& name, const std::string& value);
  void set(const std::string& name, std::uint64_t value) { set(name, std::to_string(value)); }
  // "cuMemAlloc_v2:1:2": the next call gives error 2; see sim.h. Throws std::invalid_argument.
  void fail(const std::string& what);
  void hold(bool hold);

  sim_counters counters() const;
  void clear_counters();
  std::uint64_t calls(const std::string& symbol) const;

  // One line each. Those that a test meant to cause it takes, so that they don't count at the end.
  std::vector<std::string> take_violations();
  std::vector<std::string> leaks(int kinds = kMustGo) const;

  // The bytes of device memory, whoever's context they are in.
  std::vector<std::byte> peek(std::uint64_t address, std::size_t nbytes) const;
  void poke(std::uint64_t address, const void* from, std::size_t nbytes);

  // Fails the test, line by line, for violations and for what leaked. The destructor does it too.
  void expect_clean();

  // A function of the simulated libcuda.so.1 or libcufile.so.0.
  template <typename Function>
  static Function* symbol(const char* name) {
    return reinterpret_cast<Function*>(find_symbol(name));
  }

  // Pinned memory is kept by a pool, contexts by their devices.
  static constexpr int kMustGo = SIM_DEVICE_MEMORY | SIM_STREAMS | SIM_EVENTS | SIM_FILES;

 private:
  static void* find_symbol(const char* name);
};

}  // namespace penstock::testing
