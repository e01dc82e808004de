// Every call of the simulated libraries comes in here: it is counted, refused in a child of fork(), and made to fail
// where a test wants that.
#pragma once

#include <atomic>
#include <string>

#include "types.h"

namespace sim {

// A function of the driver's, one static object each.
struct SIM_EXPORT Symbol {
  explicit Symbol(const char* its_name);
  const char* const name;
  std::atomic<std::uint64_t> calls{0};
};

struct Entry {
  Result now = kSuccess;    // what the call gives at once, if it fails
  Result later = kSuccess;  // what a copy gives when it is made
};

// kNotInitialized before cuInit() and, after it, in children.
SIM_EXPORT Entry enter(Symbol& symbol);
// For the few functions that need no cuInit() and work in children too.
SIM_EXPORT Entry enter_uninitialized(Symbol& symbol);

bool mark_initialized();  // by cuInit(): from now on a child has nothing; false in such a child

bool is_forked();  // this process is such a child

bool arm_failures(const std::string& what);  // see sim_fail()
void disarm_failures();
std::uint64_t count_calls(const std::string& symbol);
std::uint64_t count_calls_after_fork();

}  // namespace sim

#define SIM_ENTER(symbol)                        \
  static ::sim::Symbol here(#symbol);            \
  const ::sim::Entry entry = ::sim::enter(here); \
  if (entry.now != ::sim::kSuccess) return entry.now
