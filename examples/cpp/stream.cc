// Takes tensors one by one as their bytes land, while later ones are being read: a checkpoint larger than memory passes
// through a small buffer.
//
//   stream model.safetensors
#include <cstdint>
#include <iostream>

#include "penstock/error.h"
#include "penstock/reader.h"

namespace {

// Stands for whatever is done with a tensor: upload it, quantise it, compare it.
std::uint64_t sum_of_bytes(const penstock::Tensor& tensor) {
  std::uint64_t sum = 0;
  for (const std::byte byte : tensor.bytes) sum += std::to_integer<std::uint64_t>(byte);
  return sum;
}

void stream(const char* path) {
  const penstock::Reader reader{std::filesystem::path(path)};
  penstock::LoadOptions options;
  options.max_buffer = 64 * 1024 * 1024;  // how far reading may run ahead
  penstock::TensorStream tensors = reader.stream(options);
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  // A tensor's memory is free again at the end of its turn.
  while (const auto tensor = tensors.next()) {
    std::cout << tensor->name << " sums up to " << sum_of_bytes(*tensor) << "\n";
    ++count;
    bytes += tensor->bytes.size();
  }
  std::cout << count << " tensors, " << bytes << " bytes\n";
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::cerr << "usage: stream PATH\n";
    return 2;
  }
  try {
    stream(arguments[1]);
  } catch (const penstock::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
