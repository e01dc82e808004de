#include "process.h"

#include <isa-l/crc.h>
#include <sys/resource.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <iostream>
#include <sstream>
#include <stdexcept>

namespace penstock::bench {
namespace {

constexpr std::size_t kPageSize = 4096;

double cpu_seconds_now() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The lines "name: number" of a file below /proc/self whose names begin with one of these.
Fields fields_of(const char* file, std::initializer_list<const char*> beginnings) {
  Fields fields;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(':');
    const auto begins = [&](const char* beginning) { return line.rfind(beginning, 0) == 0; };
    if (colon == std::string::npos || std::none_of(beginnings.begin(), beginnings.end(), begins)) continue;
    fields[line.substr(0, colon)] = std::stoll(line.substr(colon + 1));
  }
  return fields;
}

Fields memory_kib_now() {
  return fields_of("/proc/self/status", {"Vm", "Rss"});
}
Fields moved_bytes_now() {
  return fields_of("/proc/self/io", {"read_bytes", "write_bytes"});
}

}  // namespace

void wait_for_start() {
  std::cout << "ready" << std::endl;
  std::string line;
  if (!std::getline(std::cin, line)) throw std::runtime_error("no start was given on stdin");
}

Probe::Probe() {
  std::ofstream("/proc/self/clear_refs") << "5";  // restarts VmHWM
  memory_kib_ = memory_kib_now();
  moved_bytes_ = moved_bytes_now();
  cpu_seconds_ = cpu_seconds_now();
  begin_ = std::chrono::steady_clock::now();
}

Result Probe::finish() const {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin_;
  const double cpu_seconds = cpu_seconds_now() - cpu_seconds_;
  const auto moved_bytes = moved_bytes_now();
  const auto memory_kib = memory_kib_now();
  std::cout << "stopped" << std::endl;
  const auto growth_bytes = [&](const char* after, const char* before) {
    return 1024.0 * static_cast<double>(memory_kib.at(after) - memory_kib_.at(before));
  };
  const auto moved = [&](const char* field) {
    return static_cast<double>(moved_bytes.at(field) - moved_bytes_.at(field));
  };
  return {{"seconds", elapsed.count()},
          {"cpu_seconds", cpu_seconds},
          {"peak_bytes", growth_bytes("VmHWM", "VmRSS")},
          {"anonymous_bytes", growth_bytes("RssAnon", "RssAnon")},
          {"file_mapped_bytes", growth_bytes("RssFile", "RssFile")},
          {"anonymous_bytes_before", 1024.0 * static_cast<double>(memory_kib_.at("RssAnon"))},
          {"file_bytes_before", 1024.0 * static_cast<double>(memory_kib_.at("RssFile"))},
          {"io_read_bytes", moved("read_bytes")},
          {"io_written_bytes", moved("write_bytes")}};
}

std::uint64_t touch_every_page(const std::vector<Tensor>& tensors) {
  std::uint64_t total = 0;
  for (const Tensor& tensor : tensors) {
    for (std::size_t i = 0; i < tensor.bytes.size(); i += kPageSize) {
      total += std::to_integer<std::uint64_t>(tensor.bytes[i]);
    }
  }
  return total;
}

std::uint32_t checksum(const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> by_name;
  for (const Tensor& tensor : tensors) by_name.push_back(&tensor);
  std::sort(by_name.begin(), by_name.end(), [](const Tensor* a, const Tensor* b) { return a->name < b->name; });
  std::uint32_t value = 0;
  for (const Tensor* tensor : by_name) {
    value = crc32_gzip_refl(value, reinterpret_cast<const unsigned char*>(tensor->bytes.data()), tensor->bytes.size());
  }
  return value;
}

void print_result(const Result& result) {
  const char* separator = "{";
  for (const auto& [name, figure] : result) {
    std::printf("%s\"%s\": %.17g", separator, name.c_str(), figure);
    separator = ", ";
  }
  std::printf("}\n");
}

}  // namespace penstock::bench
