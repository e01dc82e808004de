// Loads a whole checkpoint, with progress, and looks at one of its tensors.
//
//   load model.safetensors
#include <iostream>
#include <vector>

#include "penstock/error.h"
#include "penstock/reader.h"

namespace {

// Tensors own their memory: they outlive the reader that loaded them.
penstock::LoadResult load(const char* path) {
  const penstock::Reader reader{std::filesystem::path(path)};
  penstock::LoadOptions options;
  options.verify = penstock::Verify::kAny;  // check the checksums that the file carries, while its bytes land
  options.progress = [](const penstock::Progress& progress) {
    std::cerr << progress.bytes_done << " of " << progress.bytes_total << " bytes\n";
    return true;  // false would stop the load
  };
  return reader.load(options);
}

void print(const penstock::LoadResult& loaded) {
  const penstock::Stats& stats = loaded.stats;
  std::cout << "loaded " << stats.tensors << " tensors, " << stats.bytes << " bytes in " << stats.seconds << " s\n";
  std::cout << "  " << stats.path << ", " << stats.landing << ": " << stats.reason << "\n";
  for (const penstock::Tensor& tensor : loaded.tensors) {
    if (tensor.name != "decoder.bias") continue;
    const float* const values = tensor.data<float>();
    const std::size_t last = tensor.bytes.size() / sizeof(float) - 1;
    std::cout << tensor.name << "[" << last << "] = " << values[last] << "\n";
  }
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::cerr << "usage: load PATH\n";
    return 2;
  }
  try {
    print(load(arguments[1]));
  } catch (const penstock::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
