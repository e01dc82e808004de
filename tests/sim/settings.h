// What can be set, by $PENSTOCK_SIM_<NAME> or sim_set().
#pragma once

#include <cstdint>
#include <string>

namespace sim {

struct Settings {
  std::uint64_t devices = 2;
  std::uint64_t memory = std::uint64_t{4} << 30;  // of each device, bytes
  std::uint64_t driver = 12080;                   // version: 1000 * major + 10 * minor
  std::uint64_t link_to_device = 0;               // bytes/s; 0: as fast as memory
  std::uint64_t link_to_host = 0;
  std::uint64_t delay = 200;            // work begins up to so many microseconds late
  std::uint64_t seed = 1;               // of the delays
  std::uint64_t check = 1;              // whether sources are compared with what they were when their copy was queued
  std::uint64_t keep = 0;               // whether freed device memory keeps its pages: no page faults in later loads
  std::uint64_t unified = 0;            // devices that share their memory with the host
  std::int64_t numa = 0;                // node of the devices; -1: not known
  std::uint64_t refuse_pageable = 0;    // else such copies are counted
  std::uint64_t pinned_limit = 0;       // in all, bytes; 0: none
  std::uint64_t register_limit = 0;     // of one cuMemHostRegister, bytes; 0: none
  std::uint64_t file_buffered = 0;      // whether cuFile takes descriptors without O_DIRECT
  std::uint64_t file_most_bytes = 0;    // of one cuFileRead or cuFileWrite, which then is short; 0: no limit
  std::uint64_t file_closes_stdin = 0;  // whether cuFileDriverOpen closes descriptor 0
};

// False for a name or value that does not exist.
bool set(Settings& settings, const std::string& name, const std::string& value);

// As the environment has them. Ends the process, with a line on stderr, for a value that does not exist.
Settings settings_from_environment();

}  // namespace sim
