// drive_bench read FILE | write DIRECTORY NBYTES: what the drive gives to penstock's own engine when no tensor is
// filled or taken from, measured for bench/race.py. The few MiB that bytes come from and go to are in memory
// beforehand, in huge pages; a written file is new, as a checkpoint's is, and durable.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "process.h"

namespace {

using namespace penstock;

constexpr std::uint64_t kWarmUp = 64 << 20;

bench::Result result_of(const Throughput& moved, bench::Result result) {
  result["seconds"] = moved.seconds;  // without the program's own preparations
  result["bytes"] = static_cast<double>(moved.bytes);
  return result;
}

bench::Result read(const char* path) {
  measure_read(path, {}, kWarmUp);  // directly, so that nothing is cached; the memory stays for the next
  bench::wait_for_start();
  const bench::Probe probe;
  const Throughput moved = measure_read(path, {}, ~std::uint64_t{0});
  return result_of(moved, probe.finish());
}

bench::Result write(const char* directory, std::uint64_t nbytes) {
  bench::wait_for_start();
  const bench::Probe probe;
  const Throughput moved = measure_write(directory, {}, WriteMethod::kDirect, nbytes);
  return result_of(moved, probe.finish());
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string_view way = argc > 1 ? argv[1] : "";
  if (way == "read" && argc == 3) {
    bench::print_result(read(argv[2]));
  } else if (way == "write" && argc == 4) {
    bench::print_result(write(argv[2], std::strtoull(argv[3], nullptr, 10)));
  } else {
    std::fprintf(stderr, "usage: drive_bench read FILE | write DIRECTORY NBYTES\n");
    return 2;
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "drive_bench: %s\n", error.what());
  return 1;
}
