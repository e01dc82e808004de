#include "format/shards.h"

#include <gtest/gtest.h>

#include "format/test_files.h"

namespace penstock {
namespace {

using test::format_error;
using test::golden_file;

ShardIndex parse(const std::string& text) {
  return parse_shard_index(MemorySource(text, "i"));
}

std::string refusal(const std::string& text) {
  return format_error([&] { parse(text); });
}

std::string refusal_of_file_name(const std::string& json_name) {
  return refusal("{\"weight_map\":{\"a\":\"" + json_name + "\"}}");
}

TensorSpec spec_of(std::uint64_t nbytes) {
  return {"w", DType::kU8, {static_cast<std::int64_t>(nbytes)}, nbytes};
}

std::vector<std::uint32_t> shards_of(const std::vector<std::uint64_t>& sizes, std::uint64_t limit) {
  std::vector<TensorSpec> specs;
  for (const std::uint64_t size : sizes) specs.push_back(spec_of(size));
  return assign_shards(specs, limit);
}

using Shards = std::vector<std::uint32_t>;

TEST(AssignShards, an_empty_tensor_is_no_shard_of_its_own) {
  EXPECT_EQ(shards_of({0, 4000, 4000}, 3000), (Shards{0, 0, 1}));
  EXPECT_EQ(shards_of({4000, 0, 4000}, 3000), (Shards{0, 1, 1}));
}

TEST(ShardIndex, files_are_in_order_of_appearance_and_once) {
  const ShardIndex index = parse(R"({"weight_map":{"z":"2.st","a":"1.st","b":"2.st"}})");
  EXPECT_EQ(index.files, (std::vector<std::string>{"2.st", "1.st"}));
  const std::map<std::string, std::uint32_t> expected = {{"a", 1}, {"b", 0}, {"z", 0}};
  EXPECT_EQ(index.weight_map, expected);
}

TEST(ShardIndex, metadata_that_is_not_text_is_kept_as_its_json) {
  const ShardIndex index =
      parse(R"({"metadata":{"total_size":28,"s":"t","o":{"x": [1, 2.5]},"n":null},"weight_map":{}})");
  const Metadata expected = {{"total_size", "28"}, {"s", "t"}, {"o", R"({"x":[1,2.5]})"}, {"n", "null"}};
  EXPECT_EQ(index.metadata, expected);
}

TEST(ShardIndex, other_keys_are_passed_over) {
  EXPECT_EQ(parse(R"({"version":3,"weight_map":{"a":"f"},"extra":[{}]})").files, std::vector<std::string>{"f"});
}

TEST(ShardIndex, a_weight_map_of_nothing_is_an_index_of_nothing) {
  EXPECT_TRUE(parse(R"({"weight_map":{}})").files.empty());
}

TEST(ShardIndex, names_with_dots_are_plain_names) {
  EXPECT_EQ(parse(R"({"weight_map":{"a":"..model..st"}})").files, std::vector<std::string>{"..model..st"});
}

TEST(ShardIndex, what_is_no_index_is_refused) {
  EXPECT_EQ(refusal(""), "i: the shard index is empty");
  EXPECT_EQ(refusal("[]"), "i: the shard index is an array, expected an object");
  EXPECT_EQ(refusal("{}"), "i: the shard index has no \"weight_map\"");
  EXPECT_EQ(refusal("{\"weight_map\":[]}"), "i: \"weight_map\" is an array, expected an object");
  EXPECT_EQ(refusal("{\"metadata\":7,\"weight_map\":{}}"), "i: \"metadata\" is a number, expected an object");
}

TEST(ShardIndex, bad_json_is_refused) {
  EXPECT_EQ(refusal("{\"weight_map\":{}").substr(0, 41), "i: the shard index is not valid JSON: The");
  EXPECT_EQ(refusal("{\"weight_map\":{}} x").substr(0, 38), "i: the shard index is not valid JSON: ");
  EXPECT_EQ(refusal(R"({"weight_map":{},"other":[01]})").substr(0, 38), "i: the shard index is not valid JSON: ");
  EXPECT_EQ(refusal("{\"weight_map\":{\"\xFF\":\"f\"}}"), "i: byte 16: the shard index is not valid UTF-8");
}

TEST(ShardIndex, a_tensor_listed_twice_is_refused) {
  EXPECT_EQ(refusal(R"({"weight_map":{"a":"f","b":"f","a":"f"}})"),
            "i: tensor \"a\" is listed twice in the shard index");
  EXPECT_EQ(refusal(R"({"weight_map":{"a":"f","\u0061":"g"}})"), "i: tensor \"a\" is listed twice in the shard index");
}

TEST(ShardIndex, parts_listed_twice_are_refused) {
  EXPECT_EQ(refusal(R"({"weight_map":{},"weight_map":{}})"), "i: \"weight_map\" appears twice in the shard index");
  EXPECT_EQ(refusal(R"({"metadata":{},"metadata":{},"weight_map":{}})"),
            "i: \"metadata\" appears twice in the shard index");
  EXPECT_EQ(refusal(R"({"metadata":{"k":1,"k":2},"weight_map":{}})"), "i: \"metadata\": the key \"k\" appears twice");
}

TEST(ShardIndex, a_file_that_is_not_a_name_is_refused) {
  EXPECT_EQ(refusal(R"({"weight_map":{"a":7}})"), "i: tensor \"a\": its file is a number, expected a name");
}

TEST(ShardIndex, file_names_that_could_leave_the_directory_are_refused) {
  const std::string start = "i: tensor \"a\": the shard name ";
  EXPECT_EQ(refusal_of_file_name(""), start + "\"\" is not a plain file name");
  EXPECT_EQ(refusal_of_file_name("."), start + "\".\" is not a plain file name");
  EXPECT_EQ(refusal_of_file_name(".."), start + "\"..\" is not a plain file name");
  EXPECT_EQ(refusal_of_file_name("../x"), start + "\"../x\" is not a plain file name");
  EXPECT_EQ(refusal_of_file_name("/etc/passwd"), start + "\"/etc/passwd\" is not a plain file name");
  EXPECT_EQ(refusal_of_file_name("sub/x"), start + "\"sub/x\" is not a plain file name");
  EXPECT_EQ(refusal_of_file_name("./x"), start + "\"./x\" is not a plain file name");
  EXPECT_EQ(refusal_of_file_name("sub\\\\x"), start + "\"sub\\\\x\" is not a plain file name");
  EXPECT_EQ(refusal_of_file_name("x\\u0000y"), start + "\"x\\x00y\" is not a plain file name");
}

TEST(EncodeShardIndex, is_what_the_hugging_face_libraries_write) {
  ShardIndex index;
  index.files = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
  index.weight_map = {{"b", 1}, {"a", 0}};
  EXPECT_EQ(encode_shard_index(index, 28), golden_file("safetensors/model.safetensors.index.json"));
}

TEST(EncodeShardIndex, is_parsed_back) {
  ShardIndex index;
  index.files = {"1.st", "2.st"};
  index.weight_map = {{"a\"\n", 0}, {"\u00e9", 1}};
  index.metadata = {{"who", "me"}, {"total_size", "an old one"}};
  const ShardIndex back = parse(encode_shard_index(index, 1234));
  EXPECT_EQ(back.weight_map, index.weight_map);
  EXPECT_EQ(back.files, index.files);
  EXPECT_EQ(back.metadata, (Metadata{{"who", "me"}, {"total_size", "1234"}}));
}

TEST(EncodeShardIndex, an_index_of_nothing_is_parsed_back) {
  const ShardIndex back = parse(encode_shard_index({}, 0));
  EXPECT_TRUE(back.weight_map.empty());
  EXPECT_EQ(back.metadata, (Metadata{{"total_size", "0"}}));
}

TEST(AssignShards, tensors_fill_a_shard_up_to_the_limit) {
  EXPECT_EQ(shards_of({4, 4, 2, 1, 9}, 10), (Shards{0, 0, 0, 1, 1}));
  EXPECT_EQ(shards_of({4, 4, 3}, 10), (Shards{0, 0, 1}));
}

TEST(AssignShards, a_tensor_beyond_the_limit_has_a_shard_of_its_own) {
  EXPECT_EQ(shards_of({1, 99, 1}, 10), (Shards{0, 1, 2}));
  EXPECT_EQ(shards_of({99}, 10), Shards{0});
}

TEST(AssignShards, empty_tensors_take_no_place) {
  EXPECT_EQ(shards_of({0, 10, 0, 1, 0}, 10), (Shards{0, 0, 0, 1, 1}));
  EXPECT_EQ(shards_of({}, 10), Shards{});
}

TEST(AssignShards, sizes_near_the_limit_of_counting_do_not_wrap) {
  const std::uint64_t huge = std::uint64_t{1} << 63;
  EXPECT_EQ(shards_of({huge, huge, huge}, ~std::uint64_t{0}), (Shards{0, 1, 2}));
}

TEST(ShardFileName, counts_from_one_before_the_suffix) {
  EXPECT_EQ(shard_file_name("model.safetensors", 1, 3), "model-00002-of-00003.safetensors");
  EXPECT_EQ(shard_file_name("a.b.safetensors", 0, 100000), "a.b-00001-of-100000.safetensors");
  EXPECT_EQ(shard_file_name("model", 0, 1), "model-00001-of-00001");
  EXPECT_EQ(shard_file_name(".hidden", 0, 1), ".hidden-00001-of-00001");
}

TEST(IndexFileName, is_the_name_with_index_json) {
  EXPECT_EQ(index_file_name("model.safetensors"), "model.safetensors.index.json");
}

}  // namespace
}  // namespace penstock
