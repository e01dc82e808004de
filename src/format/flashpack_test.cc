// Files by hand and by the reference implementation: what is in them is what is read.
#include "format/flashpack.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "format/test_files.h"

namespace penstock {
namespace {

using test::flashpack_file;
using test::golden_file;
using test::parse_flashpack;

// Two tensors of four bytes, the second one a scalar.
const std::string kV3 = R"({"format":"flashpack_v3","target_dtype":"float32","align_bytes":128,"total_elems":3,)"
                        R"("index":[{"name":"a","shape":[2,1],"offset":0,"length":2},)"
                        R"({"name":"s","shape":[],"offset":2,"length":1}]})";

// Three bytes, one of padding, two halves.
const std::string kV4 = R"({"format":"flashpack_v4","align_bytes":0,"total_payload_bytes":8,"total_elems":5,)"
                        R"("macroblocks":[{"dtype":"uint8","offset_bytes":0,"length_bytes":3,"length_elems":3},)"
                        R"({"dtype":"float16","offset_bytes":4,"length_bytes":4,"length_elems":2}],)"
                        R"("index":[{"name":"u","shape":[3],"offset":0,"length":3,"macroblock":0},)"
                        R"({"name":"h","shape":[1],"offset":1,"length":1,"macroblock":1},)"
                        R"({"name":"g","shape":[1],"offset":0,"length":1,"macroblock":1}]})";

Layout parse_layout_of(const std::string& file) {
  return flashpack::parse(MemorySource(file, "f"));
}

std::vector<std::string> names_of(std::span<const TensorInfo> tensors) {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : tensors) names.push_back(tensor.name);
  return names;
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(PENSTOCK_TEST_DATA) + "/flashpack")) {
    if (entry.path().extension() == ".flashpack") names.push_back("flashpack/" + entry.path().filename().string());
  }
  return names;
}

TEST(FlashPack, version_3_is_one_block) {
  const auto footer = parse_flashpack(flashpack_file(kV3, "aaaabbbbssss"));
  EXPECT_EQ(footer.version, 3U);
  EXPECT_EQ(footer.text, kV3);
  ASSERT_EQ(footer.blocks.size(), 1U);
  EXPECT_EQ(footer.blocks[0].dtype, DType::kF32);
  EXPECT_EQ(footer.blocks[0].nbytes, 12U);
  ASSERT_EQ(footer.tensors.size(), 2U);
  EXPECT_EQ(footer.tensors[0].name, "a");
  EXPECT_EQ(footer.tensors[0].shape, (Shape{2, 1}));
  EXPECT_EQ(footer.tensors[0].offset, 0U);
  EXPECT_EQ(footer.tensors[0].nbytes, 8U);
  EXPECT_EQ(footer.tensors[1].dtype, DType::kF32);
}

TEST(FlashPack, a_scalar_keeps_its_shape) {
  const auto footer = parse_flashpack(flashpack_file(kV3, "aaaabbbbssss"));
  EXPECT_EQ(footer.tensors[1].shape, Shape{});
  EXPECT_EQ(footer.tensors[1].offset, 8U);
  EXPECT_EQ(footer.tensors[1].nbytes, 4U);
}

TEST(FlashPack, version_4_has_a_block_per_dtype) {
  const auto footer = parse_flashpack(flashpack_file(kV4, "uuu-gghh"));
  EXPECT_EQ(footer.version, 4U);
  ASSERT_EQ(footer.blocks.size(), 2U);
  EXPECT_EQ(footer.blocks[1].dtype, DType::kF16);
  EXPECT_EQ(footer.blocks[1].offset, 4U);
  EXPECT_EQ(footer.blocks[1].nbytes, 4U);
  ASSERT_EQ(footer.tensors.size(), 3U);
  EXPECT_EQ(footer.tensors[1].dtype, DType::kF16);
  EXPECT_EQ(footer.tensors[1].offset, 6U);
  EXPECT_EQ(footer.tensors[1].nbytes, 2U);
}

TEST(FlashPack, a_footer_keeps_its_order_and_a_layout_has_that_of_the_bytes) {
  const std::string file = flashpack_file(kV4, "uuu-gghh");
  EXPECT_EQ(names_of(parse_flashpack(file).tensors), (std::vector<std::string>{"u", "h", "g"}));
  const Layout layout = parse_layout_of(file);
  EXPECT_EQ(layout.format, "flashpack");
  EXPECT_EQ(names_of(layout.tensors), (std::vector<std::string>{"u", "g", "h"}));
}

TEST(FlashPack, version_4_may_have_one_block_and_leave_out_its_number) {
  const auto footer = parse_flashpack(
      flashpack_file(R"({"format":"flashpack_v4","macroblocks":[{"dtype":"int8","offset_bytes":0,"length_bytes":2,)"
                     R"("length_elems":2}],"index":[{"name":"a","shape":[2],"offset":0,"length":2}]})",
                     "aa"));
  EXPECT_EQ(footer.version, 4U);
  ASSERT_EQ(footer.tensors.size(), 1U);
  EXPECT_EQ(footer.tensors[0].dtype, DType::kI8);
  EXPECT_EQ(footer.tensors[0].nbytes, 2U);
}

TEST(FlashPack, version_3_may_number_its_only_block) {
  const auto footer =
      parse_flashpack(flashpack_file(R"({"format":"flashpack_v3","target_dtype":"int8","total_elems":1,)"
                                     R"("index":[{"name":"a","shape":[1],"offset":0,"length":1,"macroblock":0}]})",
                                     "a"));
  EXPECT_EQ(footer.tensors.size(), 1U);
}

TEST(FlashPack, keys_come_in_any_order_and_white_space_is_free) {
  const auto footer =
      parse_flashpack(flashpack_file("{ \"index\" : [ { \"length\" : 1 , \"macroblock\":0,\"offset\":0,"
                                     "\n\"shape\" :[ 1 ],\t\"name\":\"a\" } ] ,\r\n"
                                     "\"total_elems\" : 1, \"metadata\" : { \"k\" : \"v\" } ,"
                                     "\"macroblocks\":[{\"length_elems\":1,\"length_bytes\":2,"
                                     "\"offset_bytes\":0,\"dtype\":\"bfloat16\"}],"
                                     "\"total_payload_bytes\":2,\"align_bytes\":0,"
                                     "\"format\" : \"flashpack_v4\" } \n",
                                     "aa"));
  ASSERT_EQ(footer.tensors.size(), 1U);
  EXPECT_EQ(footer.tensors[0].dtype, DType::kBF16);
  EXPECT_EQ(footer.metadata, (Metadata{{"k", "v"}}));
}

TEST(FlashPack, escapes_in_keys_and_names_are_undone) {
  const auto footer =
      parse_flashpack(flashpack_file(R"({"form\u0061t":"flashpack_v3","target_dtype":"u\u0069nt8","total_elems":1,)"
                                     R"("index":[{"name":"\n\"\\\ud834\udd1e","shape":[1],"offset":0,"length":1}]})",
                                     "a"));
  EXPECT_EQ(footer.tensors[0].name, "\n\"\\\U0001d11e");
  EXPECT_EQ(footer.tensors[0].dtype, DType::kU8);
}

TEST(FlashPack, every_dtype_of_the_format_and_torchs_other_names_are_known) {
  const auto dtype_of = [](const std::string& name, int width) {
    return parse_flashpack(flashpack_file(R"({"format":"flashpack_v3","target_dtype":")" + name +
                                              R"(","total_elems":1,"index":[]})",
                                          std::string(static_cast<std::size_t>(width), 'x')))
        .blocks[0]
        .dtype;
  };
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype_bits(dtype) < 8) continue;
    EXPECT_EQ(dtype_of(std::string(dtype_torch_name(dtype)), static_cast<int>(dtype_bits(dtype) / 8)), dtype);
  }
  EXPECT_EQ(dtype_of("half", 2), DType::kF16);
  EXPECT_EQ(dtype_of("double", 8), DType::kF64);
  EXPECT_EQ(dtype_of("cdouble", 16), DType::kC128);
}

TEST(FlashPack, blocks_may_lie_at_any_byte) {
  // The block of floats starts at 1.
  const auto footer =
      parse_flashpack(flashpack_file(R"({"format":"flashpack_v4","macroblocks":[)"
                                     R"({"dtype":"float32","offset_bytes":1,"length_bytes":4,"length_elems":1},)"
                                     R"({"dtype":"uint8","offset_bytes":0,"length_bytes":1,"length_elems":1}],)"
                                     R"("index":[{"name":"f","shape":[],"offset":0,"length":1,"macroblock":0},)"
                                     R"({"name":"u","shape":[],"offset":0,"length":1,"macroblock":1}]})",
                                     "uffff"));
  EXPECT_EQ(footer.tensors[0].offset, 1U);
  EXPECT_EQ(footer.tensors[1].offset, 0U);
}

TEST(FlashPack, empty_tensors_may_lie_anywhere_in_their_block) {
  const auto footer =
      parse_flashpack(flashpack_file(R"({"format":"flashpack_v3","target_dtype":"uint8","total_elems":4,"index":[)"
                                     R"({"name":"a","shape":[4],"offset":0,"length":4},)"
                                     R"({"name":"inside","shape":[0,7],"offset":2,"length":0},)"
                                     R"({"name":"start","shape":[0],"offset":0,"length":0},)"
                                     R"({"name":"end","shape":[2,0],"offset":4,"length":0}]})",
                                     "aaaa"));
  EXPECT_EQ(footer.tensors[1].shape, (Shape{0, 7}));
  EXPECT_EQ(footer.tensors[1].nbytes, 0U);
  EXPECT_EQ(footer.tensors[3].offset, 4U);
}

TEST(FlashPack, an_empty_block_is_fine) {
  const auto footer = parse_flashpack(
      flashpack_file(R"({"format":"flashpack_v4","macroblocks":[)"
                     R"({"dtype":"uint8","offset_bytes":0,"length_bytes":1,"length_elems":1},)"
                     R"({"dtype":"int64","offset_bytes":1,"length_bytes":0,"length_elems":0}],"index":[]})",
                     "u"));
  EXPECT_EQ(footer.blocks.size(), 2U);
  EXPECT_TRUE(footer.tensors.empty());
}

TEST(FlashPack, blocks_are_tensors_of_one_dimension_by_number) {
  const Layout layout = flashpack::parse_blocks(MemorySource(flashpack_file(kV4, "uuu-gghh"), "f"));
  ASSERT_EQ(layout.tensors.size(), 2U);
  EXPECT_EQ(layout.tensors[0].name, "0");
  EXPECT_EQ(layout.tensors[0].shape, Shape{3});
  EXPECT_EQ(layout.tensors[1].name, "1");
  EXPECT_EQ(layout.tensors[1].dtype, DType::kF16);
  EXPECT_EQ(layout.tensors[1].shape, Shape{2});
  EXPECT_EQ(layout.tensors[1].offset, 4U);
  EXPECT_TRUE(layout.metadata.empty());
}

TEST(FlashPack, only_a_file_that_ends_with_the_mark_looks_like_one) {
  const auto looks = [](const std::string& file) { return flashpack::looks_like(MemorySource(file, "f")); };
  EXPECT_TRUE(looks(flashpack_file(kV3, "aaaabbbbssss")));
  EXPECT_TRUE(looks(flashpack_file("")));  // parse() says what is wrong with it
  EXPECT_FALSE(looks(std::string(flashpack::kMagic)));
  EXPECT_FALSE(looks(flashpack_file(kV3, "aaaabbbbssss") + "\n"));
  EXPECT_FALSE(looks(""));
}

TEST(FlashPack, every_golden_file_is_read) {
  const auto names = golden_names();
  ASSERT_GE(names.size(), 40U);
  for (const std::string& name : names) {
    const std::string file = golden_file(name);
    const auto footer = parse_flashpack(file);
    EXPECT_FALSE(footer.tensors.empty()) << name;
    EXPECT_EQ(footer.version, footer.blocks.size() == 1 ? 3U : 4U) << name;
    EXPECT_TRUE(footer.metadata.empty()) << name;
  }
}

TEST(FlashPack, the_bytes_of_golden_tensors_are_theirs) {
  // make.py lets the bytes of "weight" count from 2, those of "bias" from 1.
  const std::string file = golden_file("flashpack/one_type_complex128.flashpack");
  for (const TensorInfo& tensor : parse_flashpack(file).tensors) {
    EXPECT_EQ(tensor.dtype, DType::kC128);
    const int start = tensor.name == "weight" ? 2 : tensor.name == "bias" ? 1 : 3;
    for (std::uint64_t i = 0; i < tensor.nbytes; ++i) {
      ASSERT_EQ(static_cast<unsigned char>(file[tensor.offset + i]), (static_cast<std::uint64_t>(start) + i) % 251)
          << tensor.name;
    }
  }
}

}  // namespace
}  // namespace penstock
