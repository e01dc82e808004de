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
  const auto check = [&](const std::vector<TensorInfo>& tensors, std::uint64_t size) {
    for (const TensorInfo& tensor : tensors) {
      FUZZ_CHECK(tensor.nbytes == tensor_nbytes(tensor.dtype, tensor.shape, "f", tensor.name));
      FUZZ_CHECK(tensor.offset <= size && tensor.extent() <= size - tensor.offset);
      FUZZ_CHECK(tensor.byte_strides.empty() || tensor.byte_strides.size() == tensor.shape.size());
      FUZZ_CHECK(names.insert(tensor.name).second);
    }
  };
  check(layout.tensors, file_size);
  check(layout.packed_tensors, layout.packed.empty() ? 0 : layout.packed.back().offset + layout.packed.back().nbytes);
}

// What is packed gives the bytes that it says, or an Error.
inline void check_packed(const Layout& layout, const ByteSource& source) {
  std::uint64_t end = 0;
  for (const PackedBytes& part : layout.packed) {
    FUZZ_CHECK(part.offset >= end);
    end = part.offset + part.nbytes;
    std::uint64_t count = 0;
    try {
      part.unpack(source, [&](std::span<const std::byte> bytes) {
        count += bytes.size();
        FUZZ_CHECK(count <= part.nbytes);
      });
      FUZZ_CHECK(count == part.nbytes);
    } catch (const Error& error) {
      check_message(error, /*may_be_unsupported=*/false);
    }
  }
}

// Every value can be asked for, and points at values only.
inline void check_values(const torch::Tree& tree) {
  const auto count = static_cast<std::uint32_t>(tree.graph().nodes.size());
  const auto known = [count](std::uint32_t number) { return number == TorchValue::kNoValue || number < count; };
  for (std::uint32_t number = 0; number < 2 * count; ++number) {
    try {
      const OpaqueValues opaque = number < count ? OpaqueValues::kRefuse : OpaqueValues::kKeep;
      const TorchValue value = torch::resolve(tree, number % count, opaque, "f");
      for (const std::uint32_t item : value.items) FUZZ_CHECK(item < count);
      for (const auto& [key, entry] : value.entries) FUZZ_CHECK(key < count && entry < count);
      FUZZ_CHECK(known(value.attributes) && known(value.opaque.arguments));
      for (const std::uint32_t state : value.opaque.states) FUZZ_CHECK(state < count);
      for (const std::uint32_t item : value.opaque.items) FUZZ_CHECK(item < count);
      for (const auto& [key, entry] : value.opaque.entries) FUZZ_CHECK(key < count && entry < count);
    } catch (const Error& error) {
      check_message(error, /*may_be_unsupported=*/true);
    }
  }
}

}  // namespace penstock::fuzz
