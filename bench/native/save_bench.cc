// save_bench SOURCE TARGET: one durable save of SOURCE's tensors to a new file, measured for bench/race.py.
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "process.h"

namespace {

using namespace penstock;

// The tensors in memory that the program allocated itself, one by one, as a training process has them.
struct OwnedTensor {
  TensorInfo info;
  std::vector<std::byte> bytes;
};

// Not loaded by penstock, whose staging memory would be warm before the save begins.
std::vector<OwnedTensor> read_into_memory(const char* source) {
  const Reader reader{source};
  std::ifstream file{source, std::ios::binary};
  std::vector<OwnedTensor> owned;
  owned.reserve(reader.tensors().size());
  for (const TensorInfo& info : reader.tensors()) {
    owned.push_back({info, std::vector<std::byte>(info.nbytes)});
    file.seekg(static_cast<std::streamoff>(info.offset));
    file.read(reinterpret_cast<char*>(owned.back().bytes.data()), static_cast<std::streamsize>(info.nbytes));
  }
  if (!file) throw std::runtime_error("cannot read the tensors of the source");
  return owned;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: save_bench SOURCE TARGET\n");
    return 2;
  }
  const std::vector<OwnedTensor> tensors = read_into_memory(argv[1]);
  bench::wait_for_start();

  const bench::Probe probe;
  Writer writer{argv[2]};
  for (const OwnedTensor& tensor : tensors) {
    writer.add(tensor.info.name, tensor.info.dtype, tensor.info.shape, tensor.bytes.data());
  }
  writer.commit();
  bench::print_result(probe.finish());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "save_bench: %s\n", error.what());
  return 1;
}
