#include "format/chunks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/memory_source.h"
#include "format/test_files.h"
#include "format/test_zip.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using test::golden_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kHead = R"({"format":"penstock.dcp","version":1,"files":["a.safetensors","b"],)";

std::string document(std::string_view tensors, std::string_view objects = "{}") {
  return fmt::format(R"({}"tensors":{},"objects":{},"paths":{{"x":["x",1]}}}})", kHead, tensors, objects);
}

ChunkedCheckpoint chunks_in(const std::string& text) {
  return parse_chunks(MemorySource(text, "dcp.json"));
}

std::string refusal(const std::string& text) {
  try {
    chunks_in(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "parses";
}

// Of a tensor "x" of 4 x 6 F32.
std::string refusal_of(std::string_view chunks) {
  return refusal(document(fmt::format(R"({{"x":{{"dtype":"F32","shape":[4,6],"chunks":[{}]}}}})", chunks)));
}

TEST(Chunks, are_read_as_the_page_describes_them) {
  const ChunkedCheckpoint found = chunks_in(document(
      R"({"x":{"dtype":"BF16","shape":[4,6],"requires_grad":true,"chunks":[
          {"file":1,"offsets":[2,0],"shape":[2,6]},{"file":0,"offsets":[0,0],"shape":[2,6]}]},
          "s":{"dtype":"I64","shape":[],"chunks":[{"file":0,"offsets":[],"shape":[]}]},
          "e":{"dtype":"F32","shape":[0,3],"chunks":[]}})",
      R"({"step":1})"));
  EXPECT_THAT(found.files, ElementsAre("a.safetensors", "b"));
  ASSERT_EQ(found.tensors.size(), 3u);
  EXPECT_EQ(found.tensors[0].dtype, DType::kBF16);
  EXPECT_THAT(found.tensors[0].shape, ElementsAre(4, 6));
  EXPECT_EQ(found.tensors[0].chunks[0].file, 1u);
  EXPECT_THAT(found.tensors[0].chunks[0].offsets, ElementsAre(2, 0));
  EXPECT_THAT(found.tensors[0].chunks[0].shape, ElementsAre(2, 6));
  EXPECT_THAT(found.objects, ElementsAre("step"));
  ChunkedCheckpoint tensors = found;
  tensors.objects.clear();
  EXPECT_EQ(encode_chunks(chunks_in(encode_chunks(tensors))), encode_chunks(tensors));
}

TEST(Chunks, that_are_not_all_of_their_tensor_are_refused) {
  const std::string half = R"({"file":0,"offsets":[0,0],"shape":[2,6]})";
  EXPECT_EQ(refusal_of(half), "dcp.json: tensor \"x\": its chunks have 12 elements of 24, the others are not there");
  EXPECT_THAT(refusal_of(half + "," + half), HasSubstr("two chunks have the elements at [0, 0]"));
  EXPECT_THAT(refusal_of(half + R"(,{"file":0,"offsets":[1,0],"shape":[2,6]})"),
              HasSubstr("two chunks have the elements at [1, 0]"));
  EXPECT_THAT(
      refusal_of(half + R"(,{"file":0,"offsets":[2,0],"shape":[2,6]},{"file":0,"offsets":[0,0],"shape":[1,1]})"),
      HasSubstr("its chunks have 25 elements of 24"));
  EXPECT_THAT(refusal_of(R"({"file":0,"offsets":[1,0],"shape":[4,6]})"),
              HasSubstr("the chunk [4, 6] at [1, 0] is not within [4, 6]"));
  EXPECT_THAT(refusal_of(R"({"file":0,"offsets":[9223372036854775807,0],"shape":[4,6]})"), HasSubstr("is not within"));
  EXPECT_THAT(refusal_of(R"({"file":0,"offsets":[0],"shape":[4,6]})"), HasSubstr("and a chunk 1 offsets, 2 sizes"));
  EXPECT_THAT(refusal_of(R"({"file":2,"offsets":[0,0],"shape":[4,6]})"), HasSubstr("\"2\" is none of 2 files"));
  EXPECT_THAT(refusal_of(R"({"file":-1,"offsets":[0,0],"shape":[4,6]})"), HasSubstr("is none of 2 files"));
  EXPECT_EQ(refusal_of(half + R"(,{"file":0,"offsets":[2,0],"shape":[2,3]},{"file":1,"offsets":[2,3],"shape":[2,3]},)"
                              R"({"file":1,"offsets":[4,0],"shape":[0,6]})"),
            "parses");
}

TEST(Chunks, what_breaks_a_rule_is_named) {
  EXPECT_THAT(refusal(""), HasSubstr("is no JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("the document is no object"));
  EXPECT_THAT(refusal("{\"format\":\"\xff\"}"), HasSubstr("byte 11: not valid UTF-8"));
  EXPECT_THAT(refusal(R"({"format":"other"})"), HasSubstr("\"format\" is not \"penstock.dcp\""));
  EXPECT_THAT(refusal(R"({"format":"penstock.dcp","version":2})"), HasSubstr("\"version\" is not 1"));
  EXPECT_THAT(refusal(R"({"format":"penstock.dcp","version":1,"files":["../x"]})"), HasSubstr("not a plain file name"));
  EXPECT_THAT(refusal(R"({"format":"penstock.dcp","version":1,"files":[]})"), HasSubstr("has no \"tensors\""));
  EXPECT_THAT(refusal(document(R"({"x":3})")), HasSubstr("tensor \"x\" is no object"));
  EXPECT_THAT(refusal(document(R"({"x":{"dtype":"F99"}})")), HasSubstr("unknown dtype"));
  EXPECT_THAT(refusal(document(R"({"x":{"dtype":"F6_E2M3"}})")), HasSubstr("unknown dtype"));
  EXPECT_THAT(refusal(document(R"({"x":{"dtype":"F32","shape":[-1]}})")), HasSubstr("is no shape"));
  EXPECT_THAT(refusal(document(R"({"x":{"dtype":"F32","shape":[4611686018427387904,4],"chunks":[]}})")),
              HasSubstr("is no shape"));
  EXPECT_THAT(refusal(document(R"({"x":{"dtype":"F32","shape":[1]}})")), HasSubstr("tensor \"x\" has no \"chunks\""));
  const std::string empty = R"({"x":{"dtype":"F32","shape":[0],"chunks":[]}})";
  EXPECT_THAT(refusal(document(empty, R"({"x":0})")), HasSubstr("\"x\" is there twice"));
  EXPECT_THAT(refusal(document(empty, R"({"y":"a"})")), HasSubstr("is none of 2 files"));
}

TEST(Chunks, of_thousands_side_by_side_are_checked) {
  for (const bool by_rows : {true, false}) {
    ChunkedTensor tensor{"x", DType::kF32, {100'000, 100'000}, {}};
    for (std::int64_t i = 0; i < 100'000; ++i) {
      tensor.chunks.push_back(
          {0, {}, by_rows ? Shape{i, 0} : Shape{0, i}, by_rows ? Shape{1, 100'000} : Shape{100'000, 1}});
    }
    EXPECT_NO_THROW(check_chunks(tensor, "f"));
    tensor.chunks[7].offsets = tensor.chunks[8].offsets;
    EXPECT_THROW(check_chunks(tensor, "f"), Error);
  }
}

TEST(TorchChunks, are_those_that_penstock_describes_of_the_same_state) {
  const ChunkedCheckpoint ours = parse_chunks(MemorySource(golden_file("chunks/dcp.json"), "dcp.json"));
  const ChunkedCheckpoint torchs = parse_torch_chunks(MemorySource(golden_file("chunks/torch-2.13.metadata"), "f"));
  EXPECT_THAT(torchs.files, ElementsAre("__0_0.distcp"));
  EXPECT_THAT(torchs.objects, ElementsAre("y", "l"));
  EXPECT_EQ(torchs.objects, ours.objects);
  ASSERT_EQ(torchs.tensors.size(), ours.tensors.size());
  for (std::size_t i = 0; i < ours.tensors.size(); ++i) {
    EXPECT_EQ(torchs.tensors[i].name, ours.tensors[i].name);
    EXPECT_EQ(torchs.tensors[i].dtype, ours.tensors[i].dtype);
    EXPECT_EQ(torchs.tensors[i].shape, ours.tensors[i].shape);
    ASSERT_EQ(torchs.tensors[i].chunks.size(), 1u);
    EXPECT_EQ(torchs.tensors[i].chunks[0].offsets, ours.tensors[i].chunks[0].offsets);
    EXPECT_TRUE(torchs.tensors[i].chunks[0].stretch.has_value());
  }
}

TEST(Chunks, a_changed_byte_is_told_by_the_checksum) {
  const std::string good = golden_file("chunks/dcp.json");
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string damaged = good;
    damaged[i] ^= 4;
    // Whoever changes the name of the last entry has changed nothing else.
    if (i + 20 >= good.size() && i + 10 < good.size()) continue;
    EXPECT_NE(refusal(damaged), "parses") << i;
  }
}

TEST(TorchChunks, what_is_no_metadata_is_refused) {
  const auto refused = [](std::string_view text) -> std::string {
    try {
      parse_torch_chunks(MemorySource(text, "f"));
    } catch (const Error& error) {
      return error.what();
    }
    return "parses";
  };
  EXPECT_THAT(refused(""), HasSubstr("the pickle ends before it is complete"));
  EXPECT_THAT(refused("\x80\x02}."), HasSubstr("is no metadata of torch's"));
  EXPECT_THAT(refused("\x80\x02"
                      "cposix\nsystem\nU\x02id\x85R."),
              HasSubstr("is no metadata of torch's"));
  EXPECT_THAT(refused("\x80\x02"
                      "ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81."),
              HasSubstr("has no state"));
  EXPECT_THAT(refused("\x80\x02"
                      "ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}b."),
              HasSubstr("has no \"storage_data\""));
}

TEST(Chunks, too_many_side_by_side_are_not_compared_with_each_other) {
  std::string chunks;
  for (int i = 0; i < 3000; ++i) {
    // All begin in one row and end in another; no two have an element.
    chunks += fmt::format(R"({}{{"file":0,"offsets":[{},{}],"shape":[4000,1]}})", i > 0 ? "," : "", i, i);
  }
  const std::string text =
      document(fmt::format(R"({{"x":{{"dtype":"F32","shape":[7000,7000],"chunks":[{}]}}}})", chunks));
  EXPECT_THAT(refusal(text), HasSubstr("3000 chunks side by side are too many"));
}

std::string torch_refusal(const std::string& pickle) {
  try {
    parse_torch_chunks(MemorySource(pickle, "f"));
  } catch (const Error& error) {
    return error.what();
  }
  return "parses";
}

TEST(TorchChunks, an_object_that_is_looked_into_again_and_again_is_refused) {
  using namespace std::string_literals;
  const auto class_of = [](const std::string& name) {
    return "ctorch.distributed.checkpoint.metadata\n" + name + "\n)\x81";
  };
  const auto text_of = [](const std::string& text) {
    return "X" + test::little(static_cast<std::uint32_t>(text.size())) + text;
  };
  std::string large = class_of("MetadataIndex") + "}(";
  for (int i = 0; i < 5000; ++i) large += text_of(std::to_string(i)) + "N";
  large += text_of("fqn") + text_of("x") + "ub";
  std::string pickle = "\x80\x02" + class_of("Metadata") + "}(" + text_of("storage_data") + "}(" + large + "q\x00N"s;
  for (int i = 0; i < 5000; ++i) pickle += "h\x00N"s;
  pickle += "u" + text_of("state_dict_metadata") + "}ub.";
  EXPECT_EQ(torch_refusal(pickle), "f: says the same again and again");
}

}  // namespace
}  // namespace penstock
