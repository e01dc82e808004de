// device_program INPUT FOLDER
//
// Loads a checkpoint to device 0 and writes the bytes that arrived there to FOLDER, a file for each tensor. Prints what
// the statistics say of GPUDirect Storage.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <vector>

#include "penstock/device.h"
#include "penstock/error.h"
#include "penstock/reader.h"

namespace {

void dump(const penstock::Tensor& tensor, const std::filesystem::path& folder) {
  std::vector<char> bytes(tensor.bytes.size());
  penstock::copy_to_host(bytes.data(), tensor.bytes.data(), bytes.size());
  std::ofstream(folder / tensor.name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 3) {
    std::cerr << "usage: device_program INPUT FOLDER\n";
    return 2;
  }
  try {
    penstock::LoadOptions options;
    options.allocate = penstock::device_allocator(0);
    options.gds = penstock::DirectStorage::kOn;
    const penstock::LoadResult loaded = penstock::Reader(std::filesystem::path(arguments[1])).load(options);
    for (const penstock::Tensor& tensor : loaded.tensors) dump(tensor, arguments[2]);
    std::cout << loaded.stats.bytes_gds << " bytes by cuFile: " << loaded.stats.gds << "\n";
  } catch (const penstock::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
