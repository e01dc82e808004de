// What the simulated accelerator takes from the environment, and what it says when a process ends. Each test runs
// itself in a process of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "testing/files.h"
#include "testing/simulated_context.h"

namespace penstock::testing {
namespace {

// A variable of this test's children, too: those keep what their parent set.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 0); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* const name_;
};

class SimulatorEnvironment : public ::testing::Test {
 protected:
  SimulatorEnvironment() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(SimulatorEnvironment, settings_are_read_at_the_start) {
  const Variable devices("PENSTOCK_SIM_DEVICES", "5");
  const auto child = [] {
    int count = 0;
    const cuda::Api api = simulated_driver();
    exit(api.init(0) == 0 && api.device_count(&count) == 0 ? count : 99);
  };
  EXPECT_EXIT(child(), ::testing::ExitedWithCode(5), "");
}

TEST_F(SimulatorEnvironment, failures_are_read_at_the_start) {
  const Variable failures("PENSTOCK_SIM_FAIL", "cuInit:1:100");
  const auto child = [] {
    const cuda::Api api = simulated_driver();
    exit(api.init(0));
  };
  EXPECT_EXIT(child(), ::testing::ExitedWithCode(100), "");
}

TEST_F(SimulatorEnvironment, value_that_does_not_exist_ends_the_process) {
  const Variable delay("PENSTOCK_SIM_DELAY", "soon");
  EXPECT_DEATH(simulated_driver().init(0), "simulated accelerator: PENSTOCK_SIM_DELAY=soon is not a setting");
}

TEST_F(SimulatorEnvironment, process_reports_what_was_wrong_when_it_ends) {
  const TempDir folder;
  const Variable report("PENSTOCK_SIM_REPORT", folder / "report");
  const auto child = [] {
    const SimulatedContext context;
    context.allocate(4096);
    context.make_event();
    EXPECT_EQ(context.api.pop_context(nullptr), 0);
    EXPECT_EQ(context.api.event_synchronize(nullptr), 400);
    exit(0);
  };
  EXPECT_EXIT(child(), ::testing::ExitedWithCode(0), "");
  const std::vector<std::byte> text = read_file(folder / "report");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(text.data()), text.size()),
            "cuEventSynchronize: event 0 does not exist\n"
            "4096 bytes of device memory made on device 0 are not freed\n"
            "1 events are not destroyed\n");
}

}  // namespace
}  // namespace penstock::testing
