// What the measured programs share: the protocol of bench/measure.py, and what a stretch of work cost this process.
//
// A program prepares, calls wait_for_start(), works under a Probe, and prints one line of JSON with print_result().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "penstock/penstock.h"

namespace penstock::bench {

// Says "ready" and waits for a line. Throws when there is none.
void wait_for_start();

// Names and figures of the one line of JSON that the driver reads. Doubles hold every integer that occurs here.
using Result = std::map<std::string, double>;

// Names and numbers of a file below /proc/self.
using Fields = std::map<std::string, std::int64_t>;

// Wall clock, processor time, memory and what the drive moved from construction to finish(), which also says "stopped":
// the driver watches the process until then.
class Probe {
 public:
  Probe();
  Result finish() const;

 private:
  Fields memory_kib_;
  Fields moved_bytes_;
  double cpu_seconds_;
  std::chrono::steady_clock::time_point begin_;
};

// Sum of the first byte of every 4096 of each tensor: has every page resident, and proves it.
std::uint64_t touch_every_page(const std::vector<Tensor>& tensors);

// CRC-32 over all tensors' bytes, by name.
std::uint32_t checksum(const std::vector<Tensor>& tensors);

void print_result(const Result& result);

}  // namespace penstock::bench
