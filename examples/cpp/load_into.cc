// Reads tensors into memory that exists already, converting one of them on the way.
//
//   load_into model.safetensors
#include <iostream>
#include <vector>

#include "penstock/error.h"
#include "penstock/reader.h"

namespace {

void load_into(const char* path) {
  const penstock::Reader reader{std::filesystem::path(path)};
  const penstock::TensorInfo* const info = reader.find("decoder.bias");
  if (info == nullptr) throw penstock::Error(penstock::ErrorKind::kNotFound, std::string(path) + ": no decoder.bias");
  const auto count = static_cast<std::size_t>(info->shape.at(0));

  // Memory of yours: a vector, a pinned buffer, a parameter of a model. Its size must fit exactly.
  std::vector<float> bias(count);
  std::vector<double> wider(count);
  const std::vector<penstock::Target> as_stored = {{"decoder.bias", std::as_writable_bytes(std::span(bias)), {}}};
  const std::vector<penstock::Target> converted = {
      {"decoder.bias", std::as_writable_bytes(std::span(wider)), penstock::DType::kF64}};

  // Nothing is written before all names and sizes were checked.
  const penstock::Stats first = reader.load_into(as_stored);
  const penstock::Stats second = reader.load_into(converted);
  std::cout << "read " << first.bytes + second.bytes << " bytes into two buffers\n";
  std::cout << "bias[" << count - 1 << "] = " << bias.back() << ", the same as F64: " << wider.back() << "\n";
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::cerr << "usage: load_into PATH\n";
    return 2;
  }
  try {
    load_into(arguments[1]);
  } catch (const penstock::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
