// load_bench [--reuse] [--buffered] FILE: one load of a checkpoint, measured for bench/race.py.
//
//   --reuse     load once before, so that the measured load gets memory that was used already
//   --buffered  copy through the page cache, whatever it holds
#include <cstdio>
#include <cstring>
#include <exception>

#include "process.h"

namespace {

using namespace penstock;

struct Arguments {
  const char* file = nullptr;
  bool reuse = false;
  LoadOptions options;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--reuse") == 0) {
      arguments.reuse = true;
    } else if (std::strcmp(argv[i], "--buffered") == 0) {
      arguments.options.cache = CachePolicy::kBuffered;
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

}  // namespace

int main(int argc, char** argv) try {
  const Arguments arguments = parse(argc, argv);
  if (!arguments.file) {
    std::fprintf(stderr, "usage: load_bench [--reuse] [--buffered] FILE\n");
    return 2;
  }
  if (arguments.reuse) load_and_drop(arguments.file);
  bench::wait_for_start();

  const bench::Probe probe;
  const LoadResult loaded = Reader(arguments.file).load(arguments.options);
  const auto page_sample = bench::touch_every_page(loaded.tensors);
  bench::Result result = probe.finish();

  result["page_sample"] = static_cast<double>(page_sample);
  result["checksum"] = bench::checksum(loaded.tensors);
  bench::print_result(result);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "load_bench: %s\n", error.what());
  return 1;
}
