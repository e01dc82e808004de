// Lists what is in a checkpoint: a file, a directory of shards or an index.json. Only headers are read.
//
//   list model.safetensors
#include <iomanip>
#include <iostream>

#include "penstock/error.h"
#include "penstock/reader.h"

namespace {

std::string text_of(const penstock::Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

void list(const char* path) {
  const penstock::Reader reader{std::filesystem::path(path)};
  for (const penstock::TensorInfo& tensor : reader.tensors()) {
    std::cout << std::left << std::setw(8) << penstock::dtype_name(tensor.dtype) << std::setw(16)
              << text_of(tensor.shape) << std::right << std::setw(12) << tensor.nbytes << "  " << tensor.name << "\n";
  }
  for (const penstock::FileInfo& file : reader.files()) {
    std::cout << file.path.filename().string() << ": " << file.format << ", " << file.size << " bytes\n";
  }
  for (const auto& [key, value] : reader.metadata()) std::cout << key << " = " << value << "\n";
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::cerr << "usage: list PATH\n";
    return 2;
  }
  try {
    list(arguments[1]);
  } catch (const penstock::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
