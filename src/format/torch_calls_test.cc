// What a checkpoint's pickle calls, with arguments that are not those: each count and kind of argument is looked at.
#include <gtest/gtest.h>

#include <deque>

#include "format/detect.h"
#include "format/memory_source.h"
#include "format/shards.h"
#include "format/test_files.h"
#include "format/test_pickle.h"
#include "format/torch_file.h"
#include "format/torch_fragments.h"
#include "format/torch_value.h"

namespace penstock {
namespace {

using namespace std::string_literals;
using namespace test;

const std::string kStorage = p_storage("FloatStorage", "0", 6);
const std::string kSixFloats(24, 'x');

Layout layout_of(const std::string& body) {
  return parse_layout(MemorySource(torch_zip(body, {kSixFloats}), "f"));
}

// Nothing where it is read.
std::string problem_of(const std::string& body) {
  try {
    layout_of(body);
  } catch (const Error& error) {
    const std::string message = error.what();
    return message.substr(message.rfind(": ") + 2);
  }
  return {};
}

TorchValue value_of(const std::string& body) {
  static std::deque<torch::Checkpoint> kept;  // a value's text is a view of its checkpoint's
  const torch::Checkpoint& checkpoint =
      kept.emplace_back(torch::read_zip(MemorySource(torch_zip(body, {kSixFloats}), "f")));
  return torch::resolve(*checkpoint.tree, checkpoint.tree->graph().root, OpaqueValues::kRefuse, "f");
}

std::string call(const std::string& global, const std::vector<std::string>& arguments) {
  return global + p_tuple(arguments) + "R";
}

std::vector<std::string> tensor_arguments() {
  return {kStorage, "K\x00"s, p_integers({6}), p_integers({1}), "\x89", p_global("collections", "OrderedDict") + ")R"};
}

TEST(TorchCallsTest, a_counter_is_made_of_a_dict) {
  EXPECT_EQ(problem_of(p_global("collections", "Counter") + "]\x85R"), "a Counter of what is not a dict");
}

TEST(TorchCallsTest, a_tensor_of_a_type_has_four_parts_the_third_a_tuple) {
  const std::string make = p_global("torch._tensor", "_rebuild_from_type_v2");
  const std::string function = p_global("torch._utils", "_rebuild_tensor_v2");
  const std::string type = p_global("torch", "Tensor");
  const std::string arguments = p_tuple(tensor_arguments());
  EXPECT_EQ(problem_of(call(make, {function, type, arguments, "}"})), "");
  const std::string why = "a tensor of a type without its parts";
  EXPECT_EQ(problem_of(call(make, {function, type, arguments})), why);
  EXPECT_EQ(problem_of(call(make, {function, type, arguments, "}", "N"})), why);
  EXPECT_EQ(problem_of(call(make, {function, type, "N", "}"})), why);
}

TEST(TorchCallsTest, a_tensor_of_the_class_of_parameters_is_one) {
  const std::string make = p_global("torch._tensor", "_rebuild_from_type_v2");
  const std::string function = p_global("torch._utils", "_rebuild_tensor_v2");
  for (const bool parameter : {true, false}) {
    const std::string type = parameter ? p_global("torch.nn.parameter", "Parameter") : p_global("torch", "Tensor");
    const std::string body = call(make, {function, type, p_tuple(tensor_arguments()), "}"});
    const std::string file = torch_zip(body, {kSixFloats});
    const torch::Checkpoint checkpoint = torch::read_zip(MemorySource(file, "f"));
    ASSERT_EQ(checkpoint.tree->tensors().size(), 1u);
    EXPECT_EQ(checkpoint.tree->tensors()[0].is_parameter, parameter);
  }
}

TEST(TorchCallsTest, a_tensor_of_another_device_is_that_of_the_host) {
  const std::string make = p_global("torch._utils", "_rebuild_device_tensor_from_cpu_tensor");
  const std::string data = call(p_global("torch._utils", "_rebuild_tensor_v2"), tensor_arguments());
  const std::string device = p_string("mps");
  const Layout layout = layout_of(p_dict({{"a", call(make, {data, p_global("torch", "float32"), device, "\x88"})}}));
  ASSERT_EQ(layout.tensors.size(), 1u);
  EXPECT_EQ(layout.tensors[0].shape, Shape{6});
  EXPECT_EQ(problem_of(call(make, {data, p_global("torch", "float32"), device})), "a tensor with 3 arguments");
  // Of another type it would have been converted: that is left to torch.
  EXPECT_TRUE(
      layout_of(p_dict({{"a", call(make, {data, p_global("torch", "int32"), device, "\x88"})}})).opaque.size() == 1u);
}

std::string dtype_of_shorts() {
  return p_global("numpy", "dtype") + p_tuple({p_string("i2"), "\x89", "\x88"}) + "R" +
         p_tuple({"K\x03", p_string("<"), "N", "N", "N"}) + "b";
}

std::string buffered(std::vector<std::string> arguments) {
  return call(p_global("numpy.core.numeric", "_frombuffer"), arguments);
}

TEST(TorchCallsTest, an_array_over_a_buffer_is_in_rows_or_in_columns) {
  const std::string data = "C\x04\x01\x00\x02\x00"s;
  for (const std::string order : {"C", "F"}) {
    const Layout layout =
        layout_of(p_dict({{"a", buffered({data, dtype_of_shorts(), p_integers({1, 2}), p_string(order)})}}));
    ASSERT_EQ(layout.packed_tensors.size(), 1u);
    EXPECT_EQ(layout.packed_tensors[0].shape, (Shape{1, 2}));
  }
}

TEST(TorchCallsTest, an_array_over_a_buffer_of_other_arguments_is_opaque) {
  const std::string data = "C\x04\x01\x00\x02\x00"s;
  const std::string shape = p_integers({2});
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {data, dtype_of_shorts(), shape},
           {data, dtype_of_shorts(), shape, "N"},
           {data, dtype_of_shorts(), shape, p_string("C"), "N"},
       }) {
    const Layout layout = layout_of(p_dict({{"a", buffered(arguments)}}));
    EXPECT_TRUE(layout.packed_tensors.empty());
    EXPECT_EQ(layout.opaque.size(), 1u);
  }
}

TEST(TorchCallsTest, a_reconstructed_array_of_other_arguments_is_opaque) {
  const std::string make = p_global("numpy.core.multiarray", "_reconstruct");
  const std::string array = p_global("numpy", "ndarray");
  const std::string state = p_tuple({"K\x01", p_integers({2}), dtype_of_shorts(), "\x89", "C\x04\x01\x00\x02\x00"s});
  const std::string whole = call(make, {array, p_integers({0}), "C\x01x"}) + state + "b";
  EXPECT_EQ(layout_of(p_dict({{"a", whole}})).packed_tensors.size(), 1u);
  for (const std::string& other : {
           call(make, {array, p_integers({0})}) + state + "b",
           call(make, {p_string("numpy ndarray"), p_integers({0}), "C\x01x"}) + state + "b",
           call(make, {p_global("numpy", "dtype"), p_integers({0}), "C\x01x"}) + state + "b",
           call(make, {array, p_integers({0}), "C\x01x"}) + "](K\x01"
                                                            "eb",
       }) {
    EXPECT_TRUE(layout_of(p_dict({{"a", other}})).packed_tensors.empty());
  }
}

TEST(TorchCallsTest, old_bytearrays_are_made_of_a_text_and_its_encoding) {
  const std::string make = p_global("builtins", "bytearray");
  EXPECT_EQ(value_of(call(make, {p_string("ab"), p_string("latin-1")})).text, "ab");
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {p_string("ab"), p_string("utf-8")}, {"K\x01", p_string("latin-1")}, {p_string("ab"), "N"}}) {
    EXPECT_THROW(value_of(call(make, arguments)), Error);
  }
}

TEST(TorchCallsTest, a_layout_is_made_of_its_name) {
  const std::string make = p_global("torch.serialization", "_get_layout");
  EXPECT_EQ(value_of(call(make, {p_string("torch.sparse_coo")})).text, "torch.sparse_coo");
  EXPECT_THROW(value_of(call(make, {"N"})), Error);
  EXPECT_THROW(value_of(call(make, {p_string("torch.sparse_coo"), "N"})), Error);
}

TEST(TorchCallsTest, a_global_is_named_by_two_strings) {
  for (const std::string& body : {"N" + p_string("x") + "\x93", p_string("x") + "N\x93"}) {
    EXPECT_EQ(problem_of(body), "a global whose name is not a string");
  }
}

TEST(TorchCallsTest, an_ordered_dict_is_made_of_one_argument_at_most_and_has_nothing_appended) {
  const std::string make = p_global("collections", "OrderedDict");
  EXPECT_EQ(value_of(make + ")R").kind, TorchKind::kOrderedDict);
  EXPECT_THROW(value_of(call(make, {"]", "]"})), Error);
  EXPECT_THROW(value_of(make + ")RNa"), Error);
}

TEST(TorchCallsTest, a_frozen_set_has_its_items) {
  EXPECT_EQ(value_of("(K\x01K\x02\x91").items.size(), 2u);
}

TEST(TorchCallsTest, one_fragment_of_one_and_one_of_nothing_are_none) {
  const std::string storage = legacy_storage("FloatStorage", "0", 2);
  const std::string file = legacy_file(p_tensor(storage, 0, {2}, {1}), {"0"}, little(std::uint64_t{2}) + "12345678");
  const torch::LegacyHead head = torch::read_legacy_head(MemorySource(file, "f"));
  EXPECT_FALSE(torch::is_fragment(file.size(), head, {"m.pt", 0, 1}));
  EXPECT_TRUE(torch::is_fragment(head.nbytes() + (file.size() - head.nbytes()) / 2, head, {"m.pt", 0, 2}));
  const std::string nothing = legacy_file("}", {}, "");
  const torch::LegacyHead empty = torch::read_legacy_head(MemorySource(nothing, "f"));
  EXPECT_FALSE(torch::is_fragment(nothing.size(), empty, {"m.pt", 0, 2}));
}

TEST(TorchCallsTest, storages_by_themselves_lie_where_their_tensors_do) {
  const std::string file = torch_zip(p_dict({{"a", p_tensor(kStorage, 2, {4}, {1})}}), {kSixFloats});
  const MemorySource source(file, "f");
  const Layout storages = torch::parse_storages(source);
  ASSERT_EQ(storages.tensors.size(), 1u);
  EXPECT_EQ(storages.tensors[0].offset + 8, parse_layout(source).tensors[0].offset);
}

TEST(ShardGeneration, of_names_that_no_save_gives_there_is_none) {
  const std::string file = "model.safetensors";
  EXPECT_EQ(shard_generation(file, "model-g2-00001-of-00002.safetensors"), 2u);
  EXPECT_EQ(shard_generation(file, "model-g12-00001-of-00002.safetensors"), 12u);
  for (const char* other : {"model-g1-00001-of-00002.safetensors", "model-g0-00001-of-00002.safetensors",
                            "model-g-00001-of-00002.safetensors", "model-gx-00001-of-00002.safetensors",
                            "model-g2.safetensors", "model-g2-00001-of-00002x.safetensors", "model-00001-of-00002.bin",
                            "other-00001-of-00002.safetensors", "model.safetensor", "m"}) {
    EXPECT_EQ(shard_generation(file, other), 0u) << other;
  }
}

}  // namespace
}  // namespace penstock
