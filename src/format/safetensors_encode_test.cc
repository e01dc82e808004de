#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "format/checksums.h"
#include "format/test_files.h"

namespace penstock {
namespace {

using safetensors::encode;
using test::argument_error;
using test::golden_file;
using test::parse_safetensors;

TensorSpec spec(std::string name, DType dtype, Shape shape) {
  const std::uint64_t nbytes = tensor_nbytes(dtype, shape, "spec", name);
  return {std::move(name), dtype, std::move(shape), nbytes};
}

std::string text_of(const FilePlan& plan) {
  return {reinterpret_cast<const char*>(plan.prefix.data()), plan.prefix.size()};
}

std::string header_of(const FilePlan& plan) {
  return text_of(plan).substr(8);
}

std::vector<TensorSpec> specs_of(const Layout& layout) {
  std::vector<TensorSpec> specs;
  for (const TensorInfo& tensor : layout.tensors)
    specs.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.nbytes});
  return specs;
}

class GoldenFile : public testing::TestWithParam<const char*> {};

TEST_P(GoldenFile, is_encoded_byte_for_byte_from_any_order) {
  const std::string file = golden_file(std::string("safetensors/") + GetParam());
  ASSERT_FALSE(file.empty());
  const Layout layout = parse_safetensors(file);
  std::vector<TensorSpec> specs = specs_of(layout);
  for (int round = 0; round < 3; ++round) {
    const FilePlan plan = encode(specs, layout.metadata);
    EXPECT_EQ(text_of(plan), file.substr(0, plan.prefix.size()));
    EXPECT_EQ(plan.file_size, file.size());
    std::reverse(specs.begin(), specs.end());
    std::rotate(specs.begin(), specs.begin() + static_cast<long>(specs.size() / 3), specs.end());
  }
}

INSTANTIATE_TEST_SUITE_P(SafetensorsEncode, GoldenFile,
                         testing::Values("dtypes.safetensors", "shapes.safetensors", "names.safetensors",
                                         "nothing.safetensors", "metadata.safetensors", "six_bits.safetensors"));

TEST(SafetensorsEncode, offsets_are_those_of_the_parsed_file) {
  const std::vector<TensorSpec> specs = {spec("b", DType::kU8, {3}), spec("a", DType::kF32, {2}),
                                         spec("c", DType::kF32, {})};
  const FilePlan plan = encode(specs, {});
  EXPECT_EQ(plan.order, (std::vector<std::uint32_t>{1, 2, 0}));
  const std::uint64_t start = plan.prefix.size();
  EXPECT_EQ(plan.offsets, (std::vector<std::uint64_t>{start + 12, start, start + 8}));
  EXPECT_EQ(plan.file_size, start + 15);
  const Layout layout = parse_safetensors(text_of(plan) + std::string(15, 'x'));
  ASSERT_EQ(layout.tensors.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(layout.tensors[i].name, specs[plan.order[i]].name);
    EXPECT_EQ(layout.tensors[i].offset, plan.offsets[plan.order[i]]);
  }
}

TEST(SafetensorsEncode, metadata_comes_first_with_sorted_keys) {
  const FilePlan plan = encode(std::vector{spec("w", DType::kU8, {1})}, {{"z", "1"}, {"a", "\"2\""}});
  EXPECT_EQ(header_of(plan).substr(0, 45), R"({"__metadata__":{"a":"\"2\"","z":"1"},"w":{"d)");
}

TEST(SafetensorsEncode, metadata_that_is_empty_is_written_where_that_is_asked_for) {
  const std::vector<TensorSpec> specs = {spec("w", DType::kU8, {1})};
  EXPECT_EQ(header_of(encode(specs, {}, true)).substr(0, 24), R"({"__metadata__":{},"w":{)");
  EXPECT_EQ(header_of(encode(specs, {})).substr(0, 6), R"({"w":{)");
}

TEST(SafetensorsEncode, metadata_alone_is_a_file) {
  const FilePlan plan = encode({}, {{"k", "v"}});
  EXPECT_EQ(header_of(plan), R"({"__metadata__":{"k":"v"}}      )");
  EXPECT_EQ(parse_safetensors(text_of(plan)).metadata, (Metadata{{"k", "v"}}));
}

TEST(SafetensorsEncode, data_starts_at_a_multiple_of_8_with_the_shortest_header) {
  for (std::size_t length = 1; length < 20; ++length) {
    const std::vector<TensorSpec> specs = {spec(std::string(length, 'w'), DType::kF32, {100})};
    const FilePlan plan = encode(specs, {});
    EXPECT_EQ(plan.prefix.size() % 8, 0u);
    EXPECT_EQ(header_of(plan).substr(header_of(plan).rfind('}') + 1).size(),
              (8 - (header_of(plan).rfind('}') + 1) % 8) % 8);
    EXPECT_EQ(parse_safetensors(text_of(plan) + std::string(400, 'x')).tensors[0].offset, plan.offsets[0]);
  }
}

TEST(SafetensorsEncode, checksums_filled_in_later_do_not_change_the_length) {
  const std::vector<TensorSpec> specs = {spec("a", DType::kU8, {3}), spec("b", DType::kU8, {3})};
  const auto encoded = [&](std::vector<std::uint32_t> checksums) {
    return encode(specs, {{std::string(kChecksumKey), encode_checksums(checksums)}});
  };
  const FilePlan before = encoded({0, 0});
  const FilePlan after = encoded({0xE3069283, 0xFFFFFFFF});
  EXPECT_EQ(before.prefix.size(), after.prefix.size());
  EXPECT_EQ(before.offsets, after.offsets);
  EXPECT_NE(before.prefix, after.prefix);
}

TEST(SafetensorsEncode, duplicate_names_are_refused) {
  EXPECT_EQ(argument_error([] {
              encode(std::vector{spec("w", DType::kU8, {1}), spec("w", DType::kU8, {1})}, {});
            }),
            "two tensors have the name \"w\"");
  EXPECT_EQ(
      argument_error([] {
        encode(std::vector{spec("w", DType::kU8, {1}), spec("v", DType::kF32, {1}), spec("w", DType::kF64, {1})}, {});
      }),
      "two tensors have the name \"w\"");
}

TEST(SafetensorsEncode, the_name_of_the_metadata_is_refused) {
  EXPECT_EQ(argument_error([] { encode(std::vector{spec("__metadata__", DType::kU8, {1})}, {}); }),
            "a tensor can't have the reserved name \"__metadata__\"");
}

TEST(SafetensorsEncode, bad_utf8_is_refused) {
  EXPECT_EQ(argument_error([] { encode(std::vector{spec("ab\xFF", DType::kU8, {1})}, {}); }),
            "the tensor name \"ab\\xff\" is not valid UTF-8 (at byte 2 of it)");
  EXPECT_EQ(argument_error([] {
              encode({}, {{"\xC3", "v"}});
            }),
            "the metadata key \"\\xc3\" is not valid UTF-8 (at byte 0 of it)");
  EXPECT_EQ(argument_error([] {
              encode({}, {{"k", "v\x80"}});
            }),
            "the metadata value \"v\\x80\" is not valid UTF-8 (at byte 1 of it)");
}

TEST(SafetensorsEncode, complex_types_that_it_lacks_are_refused) {
  for (const DType dtype : {DType::kC32, DType::kC128}) {
    try {
      encode(std::vector{spec("w", dtype, {1})}, {});
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      EXPECT_NE(std::string(error.what()).find(dtype_name(dtype)), std::string::npos) << error.what();
    }
  }
}

TEST(SafetensorsEncode, sizes_that_disagree_are_refused) {
  EXPECT_EQ(argument_error([] {
              encode(std::vector{TensorSpec{"w", DType::kF32, {3}, 13}}, {});
            }),
            "tensor \"w\": 13 bytes were given, but F32 [3] takes 12");
  EXPECT_EQ(argument_error([] {
              encode(std::vector{TensorSpec{"w", DType::kF4, {3}, 2}}, {});
            }),
            "tensor \"w\": F4 [3] does not fill whole bytes");
  EXPECT_EQ(argument_error([] {
              encode(std::vector{TensorSpec{"w", DType::kU8, {-1}, 0}}, {});
            }),
            "tensor \"w\": U8 [-1] has a negative dimension");
}

TEST(SafetensorsEncode, files_larger_than_can_be_counted_are_refused) {
  const std::uint64_t sixteenth = std::uint64_t{1} << 60;
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 17; ++i)
    specs.push_back({std::to_string(i), DType::kU8, {static_cast<std::int64_t>(sixteenth)}, sixteenth});
  EXPECT_EQ(argument_error([&] { encode(specs, {}); }), "tensor \"8\": the file would be larger than 2^64 bytes");
}

TEST(SafetensorsEncode, a_header_beyond_the_limit_is_refused) {
  const Metadata much{{"k", std::string(100'000'000, 'v')}};
  EXPECT_EQ(argument_error([&] { encode({}, much); }),
            "the header would take 100000032 bytes, more than the 100000000 that safetensors allows");
}

}  // namespace
}  // namespace penstock
