// Writing torch's formats: layouts of files that are too large to write in a test.
#include "format/torch_encode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/bytes.h"
#include "format/detect.h"
#include "format/test_files.h"
#include "format/torch_file.h"
#include "format/torch_legacy.h"

namespace penstock {
namespace {

using test::argument_error;
using test::golden_file;
using test::make_spec;

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A laid-out file whose tensors are zeros, without the memory for them.
class PlannedSource final : public ByteSource {
 public:
  explicit PlannedSource(const FilePlan& plan) : size_(plan.file_size) {
    parts_[0] = text_of(plan.prefix);
    for (const Literal& literal : plan.literals) parts_[literal.offset] = text_of(literal.bytes);
    if (!plan.suffix.empty()) parts_[plan.file_size - plan.suffix.size()] = text_of(plan.suffix);
  }

  std::uint64_t size() const override { return size_; }
  const std::string& path() const override { return path_; }
  void read(std::uint64_t offset, std::span<std::byte> bytes) const override {
    EXPECT_LE(offset + bytes.size(), size_);
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    for (const auto& [begin, text] : parts_) {
      const std::uint64_t from = std::max(begin, offset);
      const std::uint64_t to = std::min(begin + text.size(), offset + bytes.size());
      if (from < to) std::memcpy(bytes.data() + (from - offset), text.data() + (from - begin), to - from);
    }
  }
  std::string text(std::uint64_t begin, std::uint64_t end) const {
    std::string text(end - begin, '\0');
    read(begin, std::as_writable_bytes(std::span(text)));
    return text;
  }

 private:
  std::map<std::uint64_t, std::string> parts_;
  std::uint64_t size_;
  std::string path_ = "f";
};

std::vector<TensorSpec> huge_specs() {
  return {make_spec("huge", DType::kU8, {std::int64_t{5} << 30}), make_spec("small", DType::kF32, {3}),
          make_spec("none", DType::kF32, {0})};
}

TEST(TorchEncodeTest, files_above_4_gib_are_byte_for_byte_those_of_torch) {
  torch::EncodeOptions options;
  options.folder = "above_4_gib";
  options.alignment = 64;
  options.checksums = false;
  const FilePlan plan = torch::encode_zip(huge_specs(), options, {});
  const PlannedSource source(plan);
  EXPECT_EQ(source.text(0, plan.offsets[0]), golden_file("torch/above_4_gib.head"));
  EXPECT_EQ(source.text(plan.offsets[0] + (std::uint64_t{5} << 30), plan.file_size),
            golden_file("torch/above_4_gib.tail"));
}

TEST(TorchEncodeTest, files_above_4_gib_are_read_again) {
  for (const std::uint64_t alignment : {64, 4096, 32768}) {
    torch::EncodeOptions options;
    options.alignment = alignment;
    for (const bool legacy : {false, true}) {
      const auto specs = huge_specs();
      const FilePlan plan = legacy ? torch::encode_legacy(specs, options) : torch::encode_zip(specs, options, {});
      const Layout layout = parse_layout(PlannedSource(plan));
      ASSERT_EQ(layout.tensors.size(), 3u);
      for (const TensorInfo& tensor : layout.tensors) {
        const std::size_t number = tensor.name == "huge" ? 0 : tensor.name == "small" ? 1 : 2;
        EXPECT_EQ(tensor.offset, plan.offsets[number]);
        EXPECT_EQ(tensor.nbytes, specs[number].nbytes);
        EXPECT_TRUE(legacy || is_aligned(tensor.offset, alignment));
      }
    }
  }
}

// Sizes around the one that a field of 32 bits can't say any more.
TEST(TorchEncodeTest, sizes_around_32_bits_are_read_again) {
  for (const std::int64_t size : {0xFFFFFFFELL, 0xFFFFFFFFLL, 0x100000000LL}) {
    const std::vector<TensorSpec> specs{make_spec("a", DType::kU8, {size}), make_spec("b", DType::kU8, {1})};
    const FilePlan plan = torch::encode_zip(specs, {}, {});
    const Layout layout = parse_layout(PlannedSource(plan));
    ASSERT_EQ(layout.tensors.size(), 2u) << size;
    EXPECT_EQ(layout.tensors[0].nbytes, static_cast<std::uint64_t>(size));
    EXPECT_EQ(layout.tensors[1].offset, plan.offsets[1]);
  }
}

TEST(TorchEncodeTest, large_storages_are_aligned_to_pages_and_small_ones_as_torch_does) {
  EXPECT_TRUE(is_aligned(torch::encode_zip(std::vector{make_spec("a", DType::kU8, {65536})}, {}, {}).offsets[0], 4096));
  const FilePlan small = torch::encode_zip(std::vector{make_spec("a", DType::kU8, {65535})}, {}, {});
  EXPECT_NE(text_of(small.prefix).find(".storage_alignment"), std::string::npos);
  EXPECT_TRUE(is_aligned(small.offsets[0], 64));
  EXPECT_LT(small.offsets[0], 4096u);
}

TEST(TorchEncodeTest, alignments_that_the_padding_can_not_say_are_refused) {
  for (const std::uint64_t alignment : {3u, 65536u, 48u}) {
    torch::EncodeOptions options;
    options.alignment = alignment;
    EXPECT_NE(argument_error([&] { torch::encode_zip({}, options, {}); }), "no error") << alignment;
  }
}

TEST(TorchEncodeTest, checksums_change_nothing_but_their_values) {
  const std::vector<TensorSpec> specs{make_spec("a", DType::kF32, {100}), make_spec("b", DType::kU8, {7})};
  const FilePlan before = torch::encode_zip(specs, {}, {});
  const FilePlan after = torch::encode_zip(specs, {}, std::vector<std::uint32_t>{0x11111111, 0x22222222});
  EXPECT_EQ(before.offsets, after.offsets);
  EXPECT_EQ(before.file_size, after.file_size);
  EXPECT_EQ(before.suffix.size(), after.suffix.size());
}

// The storages of a legacy file, and its pickles.
torch::EncodeOptions options_of(const torch::LegacyHead& head, std::vector<TensorSpec>& specs) {
  torch::EncodeOptions options;
  options.pickle = std::string(head.object());
  options.around_pickle.emplace(head.text->substr(0, head.object_begin), head.text->substr(head.object_end));
  for (const torch::Storage& storage : head.tree->storages()) {
    options.keys.push_back(storage.key);
    specs.push_back(make_spec(storage.key, storage.dtype, {static_cast<std::int64_t>(storage.count)}));
  }
  return options;
}

TEST(TorchEncodeTest, legacy_files_of_every_type_are_read_again) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype_bits(dtype) >= 8) specs.push_back(make_spec(std::string(dtype_name(dtype)), dtype, {4}));
  }
  const PlannedSource source(torch::encode_legacy(specs, {}));
  const Layout layout = torch::parse_legacy(source);
  ASSERT_EQ(layout.tensors.size(), specs.size());
  for (const TensorInfo& tensor : layout.tensors) EXPECT_EQ(dtype_name(tensor.dtype), tensor.name);
}

TEST(TorchEncodeTest, legacy_files_of_other_protocols_are_those_of_torch) {
  for (const std::string name : {"torch/tree.legacy.pt", "torch/tree_protocol_4.legacy.pt"}) {
    const std::string golden = test::golden_file(name);
    const MemorySource source(golden, "f");
    std::vector<TensorSpec> specs;
    const torch::EncodeOptions options = options_of(torch::read_legacy_head(source), specs);
    const FilePlan plan = torch::encode_legacy(specs, options);
    EXPECT_EQ(plan.file_size, golden.size());
    EXPECT_EQ(text_of(plan.prefix), golden.substr(0, plan.prefix.size()));
    EXPECT_EQ(plan.offsets, torch::read_legacy(source).storage_offsets);
    for (const Literal& literal : plan.literals) {
      EXPECT_EQ(text_of(literal.bytes), golden.substr(literal.offset, literal.bytes.size()));
    }
  }
}

TEST(TorchEncodeTest, a_list_of_other_keys_is_refused) {
  const std::string golden = test::golden_file("torch/tree_protocol_4.legacy.pt");
  std::vector<TensorSpec> specs;
  torch::EncodeOptions options = options_of(torch::read_legacy_head(MemorySource(golden, "f")), specs);
  const std::string why =
      "the pickle behind the object's is not the sorted list of its " + std::to_string(specs.size()) + " keys";
  for (const std::string_view list : {"\x80\x02].", "\x80\x02N.",
                                      "\x80\x02]N"
                                      "a."}) {
    options.around_pickle->second = list;
    EXPECT_EQ(argument_error([&] { torch::encode_legacy(specs, options); }), why);
  }
}

}  // namespace
}  // namespace penstock
