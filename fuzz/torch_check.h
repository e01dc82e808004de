// What the targets of torch's formats demand alike: of a layout and of its encoding.
#pragma once

#include <set>
#include <string>

#include "check.h"
#include "format/torch_file.h"
#include "format/torch_value.h"
#include "penstock/error.h"

namespace penstock::fuzz {

// Every tensor lies in the file, under a name of its own.
inline void check_layout(const Layout& layout, std::uint64_t file_size) {
  std::set<std::string_view> names;
  for (const TensorInfo& tensor : layout.tensors) {
    FUZZ_CHECK(tensor.nbytes == tensor_nbytes(tensor.dtype, tensor.shape, "f", tensor.name));
    FUZZ_CHECK(tensor.offset <= file_size && tensor.extent() <= file_size - tensor.offset);
    FUZZ_CHECK(tensor.byte_strides.empty() || tensor.byte_strides.size() == tensor.shape.size());
    FUZZ_CHECK(names.insert(tensor.name).second);
  }
}

// Every value can be asked for, and points at values only.
inline void check_values(const torch::Tree& tree) {
  const auto count = static_cast<std::uint32_t>(tree.graph().nodes.size());
  for (std::uint32_t number = 0; number < count; ++number) {
    try {
      const TorchValue value = torch::resolve(tree, number, "f");
      for (const std::uint32_t item : value.items) FUZZ_CHECK(item < count);
      for (const auto& [key, entry] : value.entries) FUZZ_CHECK(key < count && entry < count);
      FUZZ_CHECK(value.attributes == TorchValue::kNoValue || value.attributes < count);
    } catch (const Error& error) {
      check_message(error, /*may_be_unsupported=*/true);
    }
  }
}

}  // namespace penstock::fuzz
