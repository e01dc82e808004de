// device_program INPUT FOLDER OUTPUT
//
// Loads a checkpoint to device 0, writes the bytes that arrived there to FOLDER, a file for each tensor, and saves the
// tensors from the device as OUTPUT. Prints what the statistics say of GPUDirect Storage, a line for each way.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <vector>

#include "penstock/device.h"
#include "penstock/error.h"
#include "penstock/reader.h"
#include "penstock/writer.h"

namespace {

void dump(const penstock::Tensor& tensor, const std::filesystem::path& folder) {
  std::vector<char> bytes(tensor.bytes.size());
  penstock::copy_to_host(bytes.data(), tensor.bytes.data(), bytes.size());
  std::ofstream(folder / tensor.name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void tell(const penstock::Stats& stats) {
  std::cout << stats.bytes_gds << " bytes by cuFile: " << stats.gds << "\n";
}

penstock::Stats save(const penstock::LoadResult& loaded, const std::filesystem::path& path) {
  penstock::SaveOptions options;
  options.gds = penstock::DirectStorage::kOn;
  penstock::Writer writer(path, options);
  for (const penstock::Tensor& tensor : loaded.tensors) {
    writer.add(tensor.name, tensor.dtype, tensor.shape, tensor.bytes.data());
  }
  return writer.commit();
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 4) {
    std::cerr << "usage: device_program INPUT FOLDER OUTPUT\n";
    return 2;
  }
  try {
    penstock::LoadOptions options;
    options.allocate = penstock::device_allocator(0);
    options.gds = penstock::DirectStorage::kOn;
    const penstock::LoadResult loaded = penstock::Reader(std::filesystem::path(arguments[1])).load(options);
    for (const penstock::Tensor& tensor : loaded.tensors) dump(tensor, arguments[2]);
    tell(loaded.stats);
    tell(save(loaded, arguments[3]));
  } catch (const penstock::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
