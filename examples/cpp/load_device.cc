// Loads a checkpoint to a device: no CUDA is needed to build this, only its driver to run it.
//
//   load_device model.safetensors 0
#include <iostream>
#include <string>

#include "penstock/device.h"
#include "penstock/error.h"
#include "penstock/reader.h"

int main(int argument_count, char** arguments) {
  if (argument_count != 3) {
    std::cerr << "usage: load_device PATH DEVICE\n";
    return 2;
  }
  try {
    penstock::LoadOptions options;
    options.allocate = penstock::device_allocator(std::stoi(arguments[2]));  // or an allocator of your own
    const penstock::LoadResult loaded = penstock::Reader(std::filesystem::path(arguments[1])).load(options);
    for (const penstock::Tensor& tensor : loaded.tensors) {
      std::cout << tensor.name << ": " << tensor.bytes.size() << " bytes on device "
                << penstock::device_of(tensor.bytes.data()).value_or(-1) << "\n";
    }
    std::cout << loaded.stats.bytes << " bytes to " << loaded.stats.device << "\n";
  } catch (const penstock::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
