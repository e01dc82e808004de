#include <gtest/gtest.h>

#include <filesystem>

#include "base/bytes.h"
#include "format/checksums.h"
#include "format/test_files.h"

namespace penstock {
namespace {

using flashpack::encode;
using test::argument_error;
using test::golden_file;
using test::make_spec;
using test::parse_flashpack;

std::string suffix_of(const FilePlan& plan) {
  return {reinterpret_cast<const char*>(plan.suffix.data()), plan.suffix.size()};
}

std::string footer_of(const FilePlan& plan) {
  const std::string suffix = suffix_of(plan);
  return suffix.substr(0, suffix.size() - flashpack::kTailBytes);
}

TEST(FlashPackEncode, one_dtype_makes_a_version_3) {
  const std::vector specs = {make_spec("b", DType::kF32, {2}), make_spec("w", DType::kF32, {2, 3}),
                             make_spec("s", DType::kF32, {})};
  const FilePlan plan = encode(specs, {});
  const std::string footer = R"({"format":"flashpack_v3","target_dtype":"float32","align_bytes":128,"total_elems":65,)"
                             R"("index":[{"name":"w","shape":[2,3],"offset":0,"length":6},)"
                             R"({"name":"b","shape":[2],"offset":32,"length":2},)"
                             R"({"name":"s","shape":[],"offset":64,"length":1}]})";
  EXPECT_EQ(suffix_of(plan), footer + test::u64le(footer.size()) + std::string("FLASHPK\0", 8));
  EXPECT_TRUE(plan.prefix.empty());
  EXPECT_EQ(plan.offsets, (std::vector<std::uint64_t>{128, 0, 256}));
  EXPECT_EQ(plan.order, (std::vector<std::uint32_t>{1, 0, 2}));
  EXPECT_EQ(plan.file_size, 260 + footer.size() + 16);
}

TEST(FlashPackEncode, several_dtypes_make_a_version_4) {
  const std::vector specs = {make_spec("u", DType::kU8, {3}), make_spec("h", DType::kF16, {4}),
                             make_spec("v", DType::kU8, {1})};
  const FilePlan plan = encode(specs, {}, {.align_bytes = 8});
  EXPECT_EQ(footer_of(plan), R"({"format":"flashpack_v4","align_bytes":8,"total_payload_bytes":17,"total_elems":13,)"
                             R"("macroblocks":[{"dtype":"float16","offset_bytes":0,"length_bytes":8,"length_elems":4},)"
                             R"({"dtype":"uint8","offset_bytes":8,"length_bytes":9,"length_elems":9}],)"
                             R"("index":[{"name":"h","shape":[4],"offset":0,"length":4,"macroblock":0},)"
                             R"({"name":"u","shape":[3],"offset":0,"length":3,"macroblock":1},)"
                             R"({"name":"v","shape":[1],"offset":8,"length":1,"macroblock":1}]})");
  EXPECT_EQ(plan.offsets, (std::vector<std::uint64_t>{8, 0, 16}));
}

TEST(FlashPackEncode, the_order_given_can_be_kept) {
  const std::vector specs = {make_spec("small", DType::kU8, {1}), make_spec("large", DType::kU8, {9})};
  EXPECT_EQ(encode(specs, {}, {.align_bytes = 0}).offsets, (std::vector<std::uint64_t>{9, 0}));
  EXPECT_EQ(encode(specs, {}, {.align_bytes = 0, .keep_order = true}).offsets, (std::vector<std::uint64_t>{0, 1}));
}

TEST(FlashPackEncode, tensors_of_as_many_elements_stay_in_their_order) {
  const std::vector specs = {make_spec("z", DType::kU8, {2, 3}), make_spec("a", DType::kU8, {6}),
                             make_spec("m", DType::kU8, {3, 2})};
  EXPECT_EQ(encode(specs, {}, {.align_bytes = 0}).offsets, (std::vector<std::uint64_t>{0, 6, 12}));
}

TEST(FlashPackEncode, elements_count_and_not_bytes) {
  const std::vector specs = {make_spec("wide", DType::kF64, {2}), make_spec("many", DType::kU8, {3})};
  EXPECT_EQ(encode(specs, {}, {.align_bytes = 0}).offsets, (std::vector<std::uint64_t>{8, 0}));
}

TEST(FlashPackEncode, no_alignment_is_that_of_the_elements) {
  const std::vector specs = {make_spec("u", DType::kU8, {3}), make_spec("d", DType::kF64, {1}),
                             make_spec("c", DType::kC128, {1})};
  EXPECT_EQ(encode(specs, {}, {.align_bytes = 0}).offsets, (std::vector<std::uint64_t>{0, 8, 16}));
}

TEST(FlashPackEncode, an_alignment_that_fits_no_element_counts_in_elements) {
  // Of 3 bytes and 4: every third float.
  const std::vector specs = {make_spec("a", DType::kF32, {1}), make_spec("b", DType::kF32, {1})};
  EXPECT_EQ(encode(specs, {}, {.align_bytes = 3}).offsets, (std::vector<std::uint64_t>{0, 12}));
}

TEST(FlashPackEncode, an_empty_tensor_at_the_end_moves_the_end) {
  const std::vector specs = {make_spec("a", DType::kU8, {3}), make_spec("e", DType::kU8, {0})};
  const FilePlan plan = encode(specs, {});
  EXPECT_EQ(plan.offsets, (std::vector<std::uint64_t>{0, 128}));
  EXPECT_EQ(plan.file_size - plan.suffix.size(), 128U);
}

TEST(FlashPackEncode, large_tensors_can_start_on_pages) {
  const std::vector specs = {make_spec("big", DType::kF32, {1 << 17}), make_spec("b", DType::kF32, {10}),
                             make_spec("edge", DType::kU8, {256 * 1024}),
                             make_spec("under", DType::kU8, {256 * 1024 - 1}),
                             make_spec("big.c", DType::kC128, {1 << 15})};
  const auto offsets = encode(specs, {}, {.align_large = true}).offsets;
  EXPECT_EQ(offsets[0] % 4096, 0U);
  EXPECT_EQ(offsets[2] % 4096, 0U);
  EXPECT_EQ(offsets[4] % 4096, 0U);
  EXPECT_EQ(offsets[3] % 128, 0U);
  const auto plain = encode(specs, {}).offsets;
  EXPECT_NE(plain, offsets);
}

TEST(FlashPackEncode, a_large_tensor_behind_a_small_one_starts_on_a_page) {
  const std::vector specs = {make_spec("s", DType::kF64, {1}), make_spec("big", DType::kF64, {1 << 16}),
                             make_spec("t", DType::kF64, {1})};
  const FilePlan plan = encode(specs, {}, {.keep_order = true, .align_large = true});
  EXPECT_EQ(plan.offsets, (std::vector<std::uint64_t>{0, 4096, 4096 + (8 << 16)}));
}

TEST(FlashPackEncode, metadata_is_a_key_of_its_own_behind_the_index) {
  const std::vector specs = {make_spec("w", DType::kU8, {1})};
  const std::string without = footer_of(encode(specs, {}));
  const FilePlan plan = encode(specs, {{"z", "1"}, {"a\n", "\"2\""}});
  EXPECT_EQ(footer_of(plan), without.substr(0, without.size() - 1) + R"(,"metadata":{"a\n":"\"2\"","z":"1"}})");
  EXPECT_EQ(parse_flashpack("x" + suffix_of(plan)).metadata, (Metadata{{"z", "1"}, {"a\n", "\"2\""}}));
}

TEST(FlashPackEncode, checksums_filled_in_later_do_not_change_the_length) {
  const std::vector specs = {make_spec("a", DType::kU8, {3}), make_spec("b", DType::kU8, {3})};
  const auto encoded = [&](std::vector<std::uint32_t> checksums) {
    return encode(specs, {{std::string(kChecksumKey), encode_checksums(checksums)}});
  };
  const FilePlan before = encoded({0, 0});
  const FilePlan after = encoded({0xE3069283, 0xFFFFFFFF});
  EXPECT_EQ(before.suffix.size(), after.suffix.size());
  EXPECT_EQ(before.offsets, after.offsets);
  EXPECT_NE(before.suffix, after.suffix);
}

// The number behind "align_bytes": of a footer.
std::uint64_t align_bytes_of(const std::string& text) {
  const std::string key = "\"align_bytes\":";
  return std::stoull(text.substr(text.find(key) + key.size()));
}

TEST(FlashPackEncode, every_golden_file_is_encoded_byte_for_byte) {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(std::string(PENSTOCK_TEST_DATA) + "/flashpack")) {
    if (file.path().extension() != ".flashpack") continue;
    const std::string name = file.path().filename().string();
    const std::string bytes = golden_file("flashpack/" + name);
    const flashpack::Footer footer = parse_flashpack(bytes);
    std::vector<TensorSpec> specs;
    for (const TensorInfo& tensor : footer.tensors)
      specs.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.nbytes});
    for (const bool keep_order : {true, false}) {
      if (!keep_order && name.starts_with("name_order")) continue;
      const FilePlan plan = encode(specs, {}, {align_bytes_of(footer.text), keep_order, false});
      ASSERT_EQ(plan.file_size, bytes.size()) << name;
      EXPECT_EQ(suffix_of(plan), bytes.substr(bytes.size() - plan.suffix.size())) << name;
    }
    ++count;
  }
  EXPECT_GE(count, 40);
}

TEST(FlashPackEncode, packed_dtypes_are_refused) {
  for (const DType dtype : {DType::kF4, DType::kF6E2M3, DType::kF6E3M2}) {
    try {
      encode(std::vector{make_spec("w", dtype, {8})}, {});
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      EXPECT_EQ(error.what(), "tensor \"w\": FlashPack has no " + std::string(dtype_name(dtype)));
    }
  }
}

TEST(FlashPackEncode, nothing_to_store_is_refused) {
  const std::string expected = "there is nothing to store: a FlashPack file needs at least one element";
  EXPECT_EQ(argument_error([] { encode({}, {}); }), expected);
  EXPECT_EQ(argument_error([] { encode({}, {{"k", "v"}}); }), expected);
  EXPECT_EQ(argument_error([] { encode(std::vector{make_spec("a", DType::kF32, {0})}, {}); }), expected);
  EXPECT_EQ(argument_error([] {
              encode(std::vector{make_spec("a", DType::kF32, {0}), make_spec("b", DType::kU8, {3, 0})}, {});
            }),
            expected);
}

TEST(FlashPackEncode, duplicate_names_are_refused) {
  EXPECT_EQ(argument_error([] {
              encode(std::vector{make_spec("w", DType::kU8, {1}), make_spec("v", DType::kF32, {1}),
                                 make_spec("w", DType::kF64, {1})},
                     {});
            }),
            "two tensors have the name \"w\"");
}

TEST(FlashPackEncode, bad_utf8_is_refused) {
  EXPECT_EQ(argument_error([] { encode(std::vector{make_spec("ab\xFF", DType::kU8, {1})}, {}); }),
            "the tensor name \"ab\\xff\" is not valid UTF-8 (at byte 2 of it)");
  EXPECT_EQ(argument_error([] {
              encode(std::vector{make_spec("a", DType::kU8, {1})}, {{"\xC3", "v"}});
            }),
            "the metadata key \"\\xc3\" is not valid UTF-8 (at byte 0 of it)");
  EXPECT_EQ(argument_error([] {
              encode(std::vector{make_spec("a", DType::kU8, {1})}, {{"k", "v\x80"}});
            }),
            "the metadata value \"v\\x80\" is not valid UTF-8 (at byte 1 of it)");
}

TEST(FlashPackEncode, sizes_that_disagree_are_refused) {
  EXPECT_EQ(argument_error([] {
              encode(std::vector{TensorSpec{"w", DType::kF32, {3}, 13}}, {});
            }),
            "tensor \"w\": F32 [3] does not take 13 bytes");
  EXPECT_EQ(argument_error([] {
              encode(std::vector{TensorSpec{"w", DType::kU8, {-1}, 0}}, {});
            }),
            "tensor \"w\": U8 [-1] does not take 0 bytes");
}

TEST(FlashPackEncode, files_larger_than_can_be_counted_are_refused) {
  // Tensors of 2^60 bytes.
  const auto encode_count = [](int count, DType dtype, const FlashPackOptions& options) {
    const std::int64_t elements = (std::int64_t{1} << 60) / (dtype_bits(dtype) / 8);
    std::vector<TensorSpec> specs;
    for (int i = 0; i < count; ++i) specs.push_back(make_spec(std::to_string(i), dtype, {elements}));
    return argument_error([&] { encode(specs, {}, options); });
  };
  const std::string expected = "the file would be larger than 2^64 bytes";
  EXPECT_EQ(encode_count(15, DType::kU8, {}), "no error");
  EXPECT_EQ(encode_count(16, DType::kU8, {}), expected);
  // The elements can be counted, their bytes can't.
  EXPECT_EQ(encode_count(17, DType::kF16, {}), expected);
  EXPECT_EQ(encode_count(16, DType::kF64, {.align_large = true}), expected);
}

TEST(FlashPackEncode, an_alignment_beyond_the_limit_is_refused) {
  const std::vector specs = {make_spec("w", DType::kC128, {1}), make_spec("v", DType::kC128, {1})};
  EXPECT_EQ(argument_error([&] { encode(specs, {}, {.align_bytes = kGiB + 1}); }),
            "align_bytes is 1073741825, more than the limit of 1073741824");
  EXPECT_EQ(encode(specs, {}, {.align_bytes = kGiB, .align_large = true}).offsets,
            (std::vector<std::uint64_t>{0, kGiB}));
  EXPECT_EQ(encode(specs, {}, {.align_bytes = kGiB - 1, .align_large = true}).offsets,
            (std::vector<std::uint64_t>{0, 16 * (kGiB - 1)}));
}

}  // namespace
}  // namespace penstock
