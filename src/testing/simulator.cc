#include "testing/simulator.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <sstream>
#include <stdexcept>

namespace penstock::testing {
namespace {

constexpr const char* kCuda = PENSTOCK_SIM_FOLDER "/libcuda.so.1";
constexpr const char* kCuFile = PENSTOCK_SIM_FOLDER "/libcufile.so.0";

// For all to see, as a program's own libraries are: "libcuda.so.1" is this one from now on.
void* open_library(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    throw std::runtime_error(dlerror());
  }
  return library;
}

#define PENSTOCK_SIM(name) SimulatedDevices::symbol<decltype(name)>(#name)

std::vector<std::string> read_lines(auto function) {
  std::vector<char> buffer(1 << 18);
  function(buffer.data(), buffer.size());
  std::vector<std::string> lines;
  std::istringstream stream(buffer.data());
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

SimulatedDevices::SimulatedDevices() {
  setenv("PENSTOCK_LIBCUDA", kCuda, 1);
  setenv("PENSTOCK_LIBCUFILE", kCuFile, 1);
  PENSTOCK_SIM(sim_reset)();
}

SimulatedDevices::~SimulatedDevices() {
  expect_clean();
  PENSTOCK_SIM(sim_reset)();
}

void* SimulatedDevices::find_symbol(const char* name) {
  static void* const cuda = open_library(kCuda);
  static void* const cufile = open_library(kCuFile);
  const bool of_files = std::string(name).starts_with("cuFile");
  void* const found = dlsym(of_files ? cufile : cuda, name);
  if (found == nullptr) {
    throw std::runtime_error(dlerror());
  }
  return found;
}

void SimulatedDevices::set(const std::string& name, const std::string& value) {
  if (PENSTOCK_SIM(sim_set)(name.c_str(), value.c_str()) != 0) {
    throw std::invalid_argument("the simulator has no setting " + name + "=" + value);
  }
}

void SimulatedDevices::fail(const std::string& what) {
  if (PENSTOCK_SIM(sim_fail)(what.c_str()) != 0) {
    throw std::invalid_argument("the simulator can't understand the failure " + what);
  }
}

void SimulatedDevices::hold(bool hold) {
  PENSTOCK_SIM(sim_hold)(hold ? 1 : 0);
}

sim_counters SimulatedDevices::counters() const {
  sim_counters counters{};
  PENSTOCK_SIM(sim_read_counters)(&counters);
  return counters;
}

void SimulatedDevices::clear_counters() {
  PENSTOCK_SIM(sim_clear_counters)();
}

std::uint64_t SimulatedDevices::calls(const std::string& symbol) const {
  return PENSTOCK_SIM(sim_calls)(symbol.c_str());
}

std::vector<std::string> SimulatedDevices::take_violations() {
  std::vector<std::string> lines = read_lines(PENSTOCK_SIM(sim_violations));
  PENSTOCK_SIM(sim_clear_violations)();
  return lines;
}

std::vector<std::string> SimulatedDevices::leaks(int kinds) const {
  return read_lines([&](char* buffer, std::size_t nbytes) { PENSTOCK_SIM(sim_leaks)(kinds, buffer, nbytes); });
}

std::vector<std::byte> SimulatedDevices::peek(std::uint64_t address, std::size_t nbytes) const {
  std::vector<std::byte> bytes(nbytes);
  if (PENSTOCK_SIM(sim_peek)(bytes.data(), address, nbytes) != 0) {
    throw std::invalid_argument("no device memory of that size is at that address");
  }
  return bytes;
}

void SimulatedDevices::poke(std::uint64_t address, const void* from, std::size_t nbytes) {
  if (PENSTOCK_SIM(sim_poke)(address, from, nbytes) != 0) {
    throw std::invalid_argument("no device memory of that size is at that address");
  }
}

void SimulatedDevices::expect_clean() {
  for (const std::string& line : take_violations()) {
    ADD_FAILURE() << "simulated accelerator: " << line;
  }
  for (const std::string& line : leaks()) {
    ADD_FAILURE() << "simulated accelerator: " << line;
  }
}

}  // namespace penstock::testing
