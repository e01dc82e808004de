// load_bench [--reuse] [--buffered] [--repeats N] FILE: one load of a checkpoint, measured for bench/race.py.
//
//   --reuse     load once before, so that the measured load gets memory that was used already
//   --buffered  copy through the page cache, whatever it holds
//   --repeats   load so many times, each time after letting go of what came before; their median counts
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <vector>

#include "process.h"

namespace {

using namespace penstock;

struct Arguments {
  const char* file = nullptr;
  bool reuse = false;
  int repeats = 1;
  LoadOptions options;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--reuse") == 0) {
      arguments.reuse = true;
    } else if (std::strcmp(argv[i], "--buffered") == 0) {
      arguments.options.cache = CachePolicy::kBuffered;
    } else if (std::strcmp(argv[i], "--repeats") == 0 && i + 1 < argc) {
      arguments.repeats = std::max(1, std::atoi(argv[++i]));
    } else {
      arguments.file = argv[i];
    }
  }
  return arguments;
}

void load_and_drop(const char* file) {
  LoadOptions options;
  options.cache = CachePolicy::kDirect;
  Reader(file).load(options);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

int main(int argc, char** argv) try {
  const Arguments arguments = parse(argc, argv);
  if (!arguments.file) {
    std::fprintf(stderr, "usage: load_bench [--reuse] [--buffered] [--repeats N] FILE\n");
    return 2;
  }
  if (arguments.reuse) load_and_drop(arguments.file);
  bench::wait_for_start();

  const bench::Probe probe;
  LoadResult loaded;
  std::uint64_t page_sample = 0;
  std::vector<double> seconds;
  for (int i = 0; i < arguments.repeats; ++i) {
    loaded = {};
    const auto begin = std::chrono::steady_clock::now();
    loaded = Reader(arguments.file).load(arguments.options);
    page_sample = bench::touch_every_page(loaded.tensors);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  bench::Result result = probe.finish();

  if (arguments.repeats > 1) {
    result["first_seconds"] = seconds.front();
    result["seconds"] = median(seconds);
  }
  result["page_sample"] = static_cast<double>(page_sample);
  result["checksum"] = bench::checksum(loaded.tensors);
  bench::print_result(result);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "load_bench: %s\n", error.what());
  return 1;
}
