// Saves three tensors: ordinary memory, a strided view, and one whose bytes are made while they are written.
//
//   save model.safetensors
#include <cstdint>
#include <cstring>
#include <iostream>
#include <vector>

#include "penstock/error.h"
#include "penstock/writer.h"

namespace {

// Bytes of a tensor that never exists in memory as a whole: here, every BF16 is 1.0. Called from several threads, for
// any part of the tensor.
void fill_with_ones(std::uint64_t /*offset*/, std::span<std::byte> bytes) {
  constexpr std::uint16_t kOne = 0x3F80;
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(kOne)) std::memcpy(bytes.data() + i, &kOne, sizeof(kOne));
}

penstock::Stats save(const char* path) {
  penstock::SaveOptions options;
  options.metadata = {{"format", "pt"}};
  options.checksums = true;  // `penstock verify` can check the file against them
  penstock::Writer writer(path, options);

  // The memory is borrowed: it must live until commit() has returned.
  std::vector<float> bias(2048);
  for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i) / 2;
  writer.add("decoder.bias", penstock::DType::kF32, {2048}, bias.data());

  // Any strides, in bytes: this is the transpose of a 2048 x 1024 matrix, stored as 1024 x 2048.
  std::vector<std::uint16_t> matrix(2048 * 1024);
  for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<std::uint16_t>(0x3F80 + i % 64);
  const std::int64_t byte_strides[] = {2, 1024 * 2};
  writer.add("decoder.weight", penstock::DType::kBF16, {1024, 2048}, matrix.data(), byte_strides);

  writer.add("encoder.weight", penstock::DType::kBF16, {2048, 1026}, fill_with_ones);

  // The file appears whole, by a rename, when everything is on the drive.
  return writer.commit();
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::cerr << "usage: save FILE\n";
    return 2;
  }
  try {
    const penstock::Stats stats = save(arguments[1]);
    std::cout << "saved " << stats.tensors << " tensors, " << stats.bytes << " bytes, to " << arguments[1] << "\n";
    std::cout << "  " << stats.path << ", " << stats.backend << ": " << stats.reason << "\n";
  } catch (const penstock::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
