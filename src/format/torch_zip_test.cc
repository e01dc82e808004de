// Reading torch's zips: where tensors lie, under which names, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "format/detect.h"
#include "format/test_files.h"
#include "format/test_pickle.h"
#include "format/torch_file.h"
#include "format/torch_value.h"

namespace penstock {
namespace {

using namespace std::string_literals;
using test::format_error;
using test::p_dict;
using test::p_global;
using test::p_integer;
using test::p_integers;
using test::p_storage;
using test::p_string;
using test::p_tensor;
using test::p_tuple;
using test::torch_entries;
using test::torch_zip;
using test::unsupported_error;
using test::zip_file;
using ::testing::HasSubstr;

const std::string kFloats = p_storage("FloatStorage", "0", 6);
const std::string kSix(24, 'x');

Layout parse(const std::string& file) {
  return parse_layout(MemorySource(file, "f"));
}

std::string refusal_of(const std::string& file) {
  return format_error([&] { parse(file); });
}

std::string unsupported_of(const std::string& file) {
  return unsupported_error([&] { parse(file); });
}

std::string refusal(const std::string& body, const std::vector<std::string>& storages = {kSix}) {
  return refusal_of(torch_zip(body, storages));
}

// What stands at the end of a pickle with this body, but for `behind` bytes.
std::string place(const std::string& body, std::size_t behind = 0) {
  return "f: data.pkl: byte " + std::to_string(1 + body.size() - behind) + ": ";
}

// Refused at its last opcode, as damage.
void expect_refusal(const std::string& body, const std::string& message) {
  EXPECT_EQ(refusal(body), place(body) + message);
}

// Refused at its last opcode, as something that penstock does not read.
void expect_unsupported(const std::string& body, const std::string& message) {
  EXPECT_EQ(unsupported_of(torch_zip(body, {kSix})), place(body) + message);
}

std::vector<std::string> names(const Layout& layout) {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : layout.tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  return names;
}

TEST(TorchZipTest, a_tensor_lies_where_its_storage_and_offset_say) {
  const std::string file = torch_zip(p_dict({{"w", p_tensor(kFloats, 2, {2, 2}, {2, 1})}}), {kSix});
  const Layout layout = parse(file);
  EXPECT_EQ(layout.format, "torch");
  ASSERT_EQ(layout.tensors.size(), 1u);
  const TensorInfo& tensor = layout.tensors[0];
  EXPECT_EQ(tensor.name, "w");
  EXPECT_EQ(tensor.dtype, DType::kF32);
  EXPECT_EQ(tensor.shape, (Shape{2, 2}));
  EXPECT_EQ(tensor.offset, file.find(kSix) + 8);
  EXPECT_EQ(tensor.nbytes, 16u);
  EXPECT_TRUE(tensor.byte_strides.empty());
}

TEST(TorchZipTest, views_have_strides_and_extents) {
  const Layout layout = parse(torch_zip(p_dict({{"transposed", p_tensor(kFloats, 0, {3, 2}, {1, 3})},
                                                {"expanded", p_tensor(kFloats, 5, {4, 1}, {0, 9})}}),
                                        {kSix}));
  const TensorInfo& transposed = layout.tensors[0];
  EXPECT_EQ(transposed.byte_strides, (std::vector<std::int64_t>{4, 12}));
  EXPECT_EQ(transposed.extent(), 24u);
  const TensorInfo& expanded = layout.tensors[1];
  EXPECT_EQ(expanded.byte_strides, (std::vector<std::int64_t>{0, 0}));
  EXPECT_EQ(expanded.extent(), 4u);
  EXPECT_EQ(expanded.nbytes, 16u);
}

TEST(TorchZipTest, the_stride_of_a_single_element_may_be_anything) {
  const Layout layout =
      parse(torch_zip(p_dict({{"a", p_tensor(kFloats, 0, {2, 1}, {1, std::numeric_limits<std::int64_t>::max()})},
                              {"b", p_tensor(kFloats, 0, {2, 1}, {2, std::numeric_limits<std::int64_t>::max()})}}),
                      {kSix}));
  EXPECT_TRUE(layout.tensors[0].byte_strides.empty());
  EXPECT_EQ(layout.tensors[1].byte_strides, (std::vector<std::int64_t>{8, 0}));
}

TEST(TorchZipTest, nested_values_become_paths) {
  const std::string tensor = p_tensor(kFloats, 0, {1}, {1});
  const std::string body =
      p_dict({{"model", p_dict({{"layer.0.weight", tensor}})},
              {"list", "](" + tensor + "N" + tensor + "e"},
              {"tuple", p_tuple({tensor})},
              {"optimizer", p_dict({{"state", "}" + p_integer(3) + p_dict({{"step", tensor}}) + "s"}})},
              {"set", p_global("builtins", "set") + "](" + tensor + "e\x85R"},
              {"step", "K\x07"}});
  EXPECT_EQ(names(parse(torch_zip(body, {kSix}))),
            (std::vector<std::string>{"list/0", "list/2", "model/layer.0.weight", "optimizer/state/3/step", "set/0",
                                      "tuple/0"}));
  EXPECT_EQ(names(parse(torch_zip(tensor, {kSix}))), std::vector<std::string>{"tensor"});
  EXPECT_TRUE(parse(torch_zip("K\x01", {})).tensors.empty());
}

TEST(TorchZipTest, an_empty_name_is_a_name) {
  const std::string tensor = p_tensor(kFloats, 0, {6}, {1});
  const std::string body = p_dict({{"", tensor}, {"tensor", tensor}});
  EXPECT_EQ(names(parse(torch_zip(body, {kSix}))), (std::vector<std::string>{"", "tensor"}));
}

TEST(TorchZipTest, tied_tensors_lie_at_the_same_place) {
  const std::string tensor = p_tensor(kFloats, 0, {6}, {1});
  const Layout layout = parse(torch_zip(p_dict({{"a", tensor + "q\x01"s}, {"b", "h\x01"s}, {"c", tensor}}), {kSix}));
  ASSERT_EQ(layout.tensors.size(), 3u);
  EXPECT_EQ(layout.tensors[0].offset, layout.tensors[1].offset);
  EXPECT_EQ(layout.tensors[0].offset, layout.tensors[2].offset);
}

TEST(TorchZipTest, typed_tensors_parameters_and_locations_are_read) {
  const std::string bytes = p_storage("UntypedStorage", "0", 24, "cuda:3");
  const std::string typed = p_tensor(bytes, 1, {2}, {1}, {p_global("torch", "float8_e5m2")}, "_rebuild_tensor_v3");
  const std::string parameter =
      p_global("torch._utils", "_rebuild_parameter") +
      p_tuple({p_tensor(kFloats, 0, {6}, {1}), "\x88", p_global("collections", "OrderedDict") + ")R"}) + "R";
  const std::string file = torch_zip(p_dict({{"t", typed}, {"p", parameter}}), {kSix});
  const Layout layout = parse(file);
  EXPECT_EQ(layout.tensors[1].dtype, DType::kF8E5M2);
  const torch::Checkpoint checkpoint = torch::read_zip(MemorySource(file, "f"));
  EXPECT_EQ(checkpoint.tree->storages()[0].location, "cuda:3");
  EXPECT_TRUE(checkpoint.tree->tensors().back().is_parameter);
  EXPECT_TRUE(checkpoint.tree->tensors().back().requires_grad);
}

TEST(TorchZipTest, numbers_that_point_outside_of_the_storage_are_refused) {
  expect_refusal(p_tensor(kFloats, 0, {7}, {1}),
                 "a tensor of [7] with offset 0 needs element 6 of storage \"0\", which has 6");
  expect_refusal(p_tensor(kFloats, 1, {6}, {1}),
                 "a tensor of [6] with offset 1 needs element 6 of storage \"0\", which has 6");
  expect_refusal(p_tensor(kFloats, 0, {2, 3}, {4, 1}),
                 "a tensor of [2, 3] with offset 0 needs element 6 of storage \"0\", which has 6");
  expect_refusal(p_tensor(kFloats, -1, {1}, {1}), "the offset of a tensor is -1, less than 0");
  expect_refusal(p_tensor(kFloats, 0, {-1}, {1}), "a dimension is -1, less than 0");
  expect_refusal(p_tensor(kFloats, 5, {2}, {-1}), "a stride is -1, less than 0");
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  expect_refusal(p_tensor(kFloats, 0, {3, 3}, {most, most}), "a tensor's strides reach beyond 2^64");
  expect_refusal(p_tensor(kFloats, most, {2}, {1}),
                 "a tensor of [2] with offset 9223372036854775807 needs element 9223372036854775808 of storage \"0\", "
                 "which has 6");
  const std::string square = p_tensor(kFloats, 0, {most, most}, {0, 0});
  EXPECT_TRUE(refusal(square).starts_with(place(square) + "a tensor of F32 [9223372036854775807, "));
  expect_refusal(p_tensor(kFloats, 7, {0}, {1}),
                 "a tensor of [0] with offset 7 needs element 7 of storage \"0\", which has 6");
  EXPECT_EQ(refusal(p_tensor(kFloats, 6, {0}, {1})), "no error");
  expect_refusal(p_tensor(kFloats, most, {0}, {1}),
                 "a tensor of [0] with offset 9223372036854775807 needs element 9223372036854775807 of storage \"0\", "
                 "which has 6");
}

TEST(TorchZipTest, a_typed_tensor_counts_in_its_own_elements) {
  const std::string bytes = p_storage("UntypedStorage", "0", 24);
  const std::vector<std::string> doubles{p_global("torch", "float64")};
  EXPECT_EQ(refusal(p_tensor(bytes, 0, {3}, {1}, doubles, "_rebuild_tensor_v3")), "no error");
  expect_refusal(p_tensor(bytes, 1, {3}, {1}, doubles, "_rebuild_tensor_v3"),
                 "a tensor of [3] with offset 1 needs element 3 of storage \"0\", which has 3");
}

TEST(TorchZipTest, storages_that_are_not_what_the_pickle_says_are_refused) {
  const std::string tensor = p_tensor(kFloats, 0, {6}, {1});
  EXPECT_EQ(refusal(tensor, {kSix.substr(1)}), "f: record \"x/data/0\" has 23 bytes, but its storage takes 24");
  EXPECT_EQ(refusal(tensor, {kSix + "x"}), "f: record \"x/data/0\" has 25 bytes, but its storage takes 24");
  EXPECT_EQ(refusal(tensor, {}), "f: storage \"0\" has no record");
  expect_refusal(p_storage("FloatStorage", "0", -1), "the size of a storage is -1, less than 0");
  expect_refusal(p_storage("DoubleStorage", "0", std::int64_t{1} << 62), "storage \"0\" is too large");
  EXPECT_EQ(refusal(p_storage("FloatStorage", "0", std::int64_t{1} << 40)),
            "f: record \"x/data/0\" has 24 bytes, but its storage takes 4398046511104");
  const std::string two = p_tuple({kFloats, p_storage("FloatStorage", "0", 7)});
  EXPECT_EQ(refusal(two), place(two, 1) + "storage \"0\" has two sizes: 24 and 28 bytes");
}

TEST(TorchZipTest, persistent_ids_that_are_no_storages_are_refused) {
  expect_refusal(p_string("storage") + "Q", "a persistent id is not a tuple");
  expect_unsupported(p_tuple({p_string("model"), "N", "N", "N", "N"}) + "Q", "a persistent id that is not a storage's");
  expect_unsupported(p_tuple({p_string("storage")}) + "Q", "a persistent id that is not a storage's");
  expect_refusal(p_tuple({"N", "N", "N", "N", "N"}) + "Q", "the kind of a persistent id is not a string");
  expect_refusal(
      p_tuple({p_string("storage"), p_global("torch", "Size"), p_string("0"), p_string("cpu"), "K\x01"}) + "Q",
      "a storage whose class is unknown");
  expect_refusal(
      p_tuple({p_string("storage"), p_global("torch", "FloatStorage"), "K\x01", p_string("cpu"), "K\x01"}) + "Q",
      "the key of a storage is not a string");
  expect_refusal(
      p_tuple({p_string("storage"), p_global("torch", "FloatStorage"), p_string("0"), p_string("cpu"), "\x88"}) + "Q",
      "the size of a storage is not an integer");
}

TEST(TorchZipTest, tensors_of_the_wrong_parts_are_refused) {
  expect_refusal(p_tensor("N", 0, {1}, {1}), "a tensor without a storage");
  expect_refusal(p_tensor(kFloats, 0, {1, 1}, {1}), "a tensor with 2 dimensions and 1 strides");
  expect_refusal(p_global("torch._utils", "_rebuild_tensor_v2") + p_tuple({kFloats}) + "R",
                 "a tensor with 1 arguments");
  expect_refusal(p_tensor(kFloats, 0, {1}, {1}, {"N", "N"}), "a tensor with 8 arguments");
  expect_refusal(p_tensor(kFloats, 0, {1}, {1}, {p_global("torch", "Size")}, "_rebuild_tensor_v3"),
                 "a tensor whose dtype is unknown");
  const std::string hooks = p_global("collections", "OrderedDict") + ")R";
  const auto parts = [&](const std::string& shape, const std::string& grad) {
    return p_global("torch._utils", "_rebuild_tensor_v2") +
           p_tuple({kFloats, "K\x00"s, shape, p_integers({1}), grad, hooks}) + "R";
  };
  expect_refusal(parts("]", "\x89"), "a shape that is not a tuple");
  expect_refusal(parts(p_tuple({"N"}), "\x89"), "a dimension is not an integer");
  expect_refusal(parts(p_integers({1}), "N"), "whether a tensor requires a gradient is not a bool");
  EXPECT_EQ(refusal(parts(p_global("torch", "Size") + p_integers({1}) + "\x85R", "\x89")), "no error");
  expect_refusal(p_global("torch._utils", "_rebuild_parameter") + p_tuple({"N", "\x88", hooks}) + "R",
                 "a parameter of what is not a tensor");
  expect_refusal(p_global("torch._utils", "_rebuild_parameter") + p_tuple({"N"}) + "R",
                 "a parameter with 1 arguments, expected 3");
}

// Unpicklers that execute would call set_() with what follows.
TEST(TorchZipTest, a_tensor_that_is_changed_after_it_was_made_is_refused) {
  const std::string tensor = p_tensor(kFloats, 0, {1}, {1});
  const std::string why = place(tensor) + "a tensor that is changed after it was made";
  for (const std::string& change : {p_tuple({kFloats, "K\x01"}) + "b", "K\x00K\x01s"s,
                                    "(K\x00"
                                    "e"s}) {
    EXPECT_EQ(unsupported_of(torch_zip(tensor + change, {kSix})), why);
  }
}

TEST(TorchZipTest, tensors_whose_bytes_mean_something_else_are_left_out) {
  const std::string marked = p_tensor(kFloats, 0, {1}, {1}, {p_dict({{"conj", "\x88"}})});
  const Layout layout = parse(torch_zip(p_dict({{"a", marked}}), {kSix}));
  EXPECT_TRUE(layout.tensors.empty());
  ASSERT_EQ(layout.opaque.size(), 1u);
  EXPECT_EQ(layout.opaque[0].path, "a");
  expect_unsupported(p_tensor(kFloats, 0, {1}, {1}, {p_dict({{"mirror", "\x88"}})}),
                     "a tensor that is marked \"mirror\", which can't be read");
  EXPECT_EQ(refusal(p_tensor(kFloats, 0, {1}, {1}, {p_dict({{"conj", "\x89"}, {"neg", "\x89"}})})), "no error");
  EXPECT_EQ(refusal(p_tensor(kFloats, 0, {1}, {1}, {"N"})), "no error");
  expect_refusal(p_tensor(kFloats, 0, {1}, {1}, {"K\x01"}), "a tensor whose metadata is not a dict");
}

TEST(TorchZipTest, names_that_collide_are_refused) {
  const std::string tensor = p_tensor(kFloats, 0, {1}, {1});
  EXPECT_EQ(refusal(p_dict({{"a", p_dict({{"b", tensor}})}, {"a/b", tensor}})),
            "f: two tensors of the tree have the path \"a/b\"");
}

// Ten lists, each of ten times the one before: few bytes, ten billion values.
std::string bomb(const std::string& leaf) {
  std::string body = "](" + leaf + "e" + "q\x00"s + "0";
  for (char level = 1; level <= 10; ++level) {
    body += "](";
    for (int i = 0; i < 10; ++i) body += "h"s + static_cast<char>(level - 1);
    body += "eq"s + level + "0";
  }
  return body + "h\x0a";
}

TEST(TorchZipTest, values_that_repeat_without_end_are_refused) {
  // What a walk may take goes by what there is: a value of each opcode here.
  EXPECT_EQ(refusal(bomb("K\x01"), {}), "f: data.pkl: the tree has more than 100024 values");
  EXPECT_THAT(refusal(bomb(p_tensor(kFloats, 0, {1}, {1}))),
              HasSubstr("f: data.pkl: 1 tensors are repeated more than 20"));
}

TEST(TorchZipTest, paths_that_would_take_much_memory_are_refused) {
  const std::string key(100'000, 'k');
  std::string body = "}" + p_string(key) + "](" + p_tensor(kFloats, 0, {1}, {1}) + "q\x00"s;
  for (int i = 0; i < 10'000; ++i) body += "h\x00"s;
  EXPECT_EQ(refusal(body + "es"), "f: data.pkl: the paths of its tensors take more than 5155680 bytes");
}

TEST(TorchZipTest, what_many_tensors_have_in_common_is_not_copied_without_end) {
  const std::vector<std::int64_t> ones(64, 1);
  std::string shapes = "]" + p_global("torch._utils", "_rebuild_tensor_v2") + "q\x00"s + "0";
  shapes += p_tuple({kFloats, "K\x00"s, p_integers(ones), p_integers(ones), "\x89", "N"}) + "q\x01" + "0(";
  for (int i = 0; i < 2'000; ++i) shapes += "h\x00h\x01R"s;
  EXPECT_THAT(refusal(shapes + "e"), HasSubstr("tensors that share their shapes have"));
}

TEST(TorchZipTest, long_keys_and_locations_of_storages_are_refused) {
  const std::string long_name(1001, 'k');
  EXPECT_THAT(refusal(p_tensor(p_storage("FloatStorage", long_name, 6), 0, {6}, {1})),
              HasSubstr("the key of a storage has 1001 bytes, more than 1000"));
  EXPECT_THAT(refusal(p_tensor(p_storage("FloatStorage", "0", 6, long_name), 0, {6}, {1})),
              HasSubstr("the location of a storage has 1001 bytes, more than 1000"));
}

TEST(TorchZipTest, a_compressed_pickle_can_not_be_much_larger_than_its_file) {
  // Zeros of two megabytes, in a block of deflate that does not matter: the sizes are looked at first.
  auto entries = torch_entries("N", {});
  entries[0].method = 8;
  entries[0].data = std::string(3000, '\x55');
  entries[0].inflated_nbytes = 2 << 20;
  EXPECT_EQ(refusal_of(zip_file(entries)),
            "f: data.pkl takes 2097152 bytes, compressed 3000: no pickle of weights is like that");
}

TEST(TorchZipTest, many_dimensions_are_refused) {
  const std::vector<std::int64_t> ones(65, 1);
  expect_refusal(p_tensor(kFloats, 0, ones, ones), "a tensor with 65 dimensions, more than 64");
}

TEST(TorchZipTest, deep_and_self_containing_values_are_refused_without_harm) {
  std::string deep;
  for (int i = 0; i < 1'100; ++i) deep += "](";
  deep += "N";
  for (int i = 0; i < 1'100; ++i) deep += "e";
  EXPECT_EQ(refusal(deep, {}), "f: data.pkl: values are nested deeper than 1000");
  EXPECT_EQ(refusal("]q\x00h\x00"
                    "a"s,
                    {}),
            "f: data.pkl: values are nested deeper than 1000");
  EXPECT_EQ(refusal("}q\x00"
                    "K\x01h\x00s"s,
                    {}),
            "f: data.pkl: values are nested deeper than 1000");
}

torch::Checkpoint read(const std::string& file) {
  return torch::read_zip(MemorySource(file, "f"));
}

TEST(TorchZipTest, gadgets_are_named_and_nothing_else) {
  for (const auto& [module, name] :
       std::vector<std::pair<std::string, std::string>>{{"os", "system"},
                                                        {"builtins", "eval"},
                                                        {"builtins", "exec"},
                                                        {"builtins", "getattr"},
                                                        {"__builtin__", "eval"},
                                                        {"torch", "load"},
                                                        {"torch", "hub"},
                                                        {"torch._utils", "_rebuild_wrapper_subclass"},
                                                        {"torch.nn.modules.linear", "Linear"},
                                                        {"numpy", "load"},
                                                        {"torch", "FloatStorage.__init__"},
                                                        {"subprocess", "Popen"},
                                                        {"functools", "partial"}}) {
    const std::string dotted = module + "." + name;
    for (const std::string& body : {p_global(module, name), p_global(module, name) + p_string("true") + "\x85R"}) {
      const std::string file = torch_zip(body, {});
      EXPECT_EQ(unsupported_error([&] { torch::refuse_opaque(read(file), "f"); }),
                "f: data.pkl: byte 2: the global \"" + dotted +
                    "\" is not one that a checkpoint's data needs; it was not imported (opaque=\"keep\" loads the "
                    "rest)");
      const Layout layout = parse(file);
      EXPECT_TRUE(layout.tensors.empty());
      ASSERT_EQ(layout.opaque.size(), 1u) << dotted;
      EXPECT_EQ(layout.opaque[0].name, dotted);
      EXPECT_EQ(layout.opaque[0].path, "");
    }
  }
  EXPECT_NO_THROW(torch::refuse_opaque(read(torch_zip(p_tensor(kFloats, 0, {1}, {1}), {kSix})), "f"));
}

TEST(TorchZipTest, tensors_in_objects_are_found_by_the_names_of_attributes) {
  const std::string tensor = p_tensor(kFloats, 0, {1}, {1});
  const std::string object =
      p_global("my.models", "Net") + p_tuple({tensor}) + "\x81" +
      p_dict(
          {{"weight", tensor}, {"inner", p_global("my.models", "Part") + ")\x81" + p_dict({{"bias", tensor}}) + "b"}}) +
      "b" + "(" + p_string("item") + tensor + "u" + tensor + "a";
  const Layout layout = parse(torch_zip(p_dict({{"model", object}, {"plain", tensor}}), {kSix}));
  EXPECT_EQ(names(layout), (std::vector<std::string>{"model/0", "model/args/0", "model/inner/bias", "model/item",
                                                     "model/weight", "plain"}));
  ASSERT_EQ(layout.opaque.size(), 1u);  // the outermost
  EXPECT_EQ(layout.opaque[0].path, "model");
  EXPECT_EQ(layout.opaque[0].name, "my.models.Net");
}

TEST(TorchZipTest, objects_that_refer_to_each_other_are_looked_into_once) {
  // a.b = b; b.a = a; both in a list, many times.
  const std::string tensor = p_tensor(kFloats, 0, {1}, {1});
  std::string body = "](" + p_global("m", "A") + ")\x81q\x01" + p_global("m", "B") + ")\x81q\x02}(" + p_string("a") +
                     "h\x01" + p_string("w") + tensor + "ub}" + p_string("b") + "h\x02sb";
  body = "](" + p_global("m", "A") + ")\x81q\x01}" + p_string("b") + p_global("m", "B") + ")\x81q\x02}(" +
         p_string("a") + "h\x01" + p_string("w") + tensor + "ubsb";
  for (int i = 0; i < 10; ++i) body += "h\x01h\x02";
  const Layout layout = parse(torch_zip(body + "e", {kSix}));
  EXPECT_EQ(names(layout), std::vector<std::string>{"0/b/w"});
}

TEST(TorchZipTest, objects_of_objects_are_named_by_what_is_called_first) {
  EXPECT_EQ(parse(torch_zip(p_global("m", "f") + ")R)R)R", {})).opaque[0].name, "m.f");
  EXPECT_EQ(parse(torch_zip(p_global("copy_reg", "_reconstructor") +
                                p_tuple({p_global("m", "C"), p_global("__builtin__", "object"), "N"}) + "R",
                            {}))
                .opaque[0]
                .name,
            "m.C");
  EXPECT_EQ(parse(torch_zip(p_string("x") + ")R", {})).opaque[0].name, "an object without a name");
}

// What torch before 0.4 and Python 2 wrote.

TEST(TorchZipTest, tensors_of_the_first_versions_are_read) {
  const std::string size = p_global("torch", "Size") + p_integers({2, 2}) + "\x85R";
  const std::string parts = p_tuple({kFloats, "K\x01", size, p_integers({2, 1})});
  for (const std::string& body : {p_global("torch._utils", "_rebuild_tensor") + parts + "R",
                                  p_global("torch", "FloatTensor") + ")R" + parts + "b",
                                  p_global("torch.cuda", "FloatTensor") + ")\x81" + parts + "b"}) {
    const Layout layout = parse(torch_zip(body, {kSix}));
    ASSERT_EQ(layout.tensors.size(), 1u);
    EXPECT_EQ(layout.tensors[0].shape, (Shape{2, 2}));
    EXPECT_EQ(layout.tensors[0].dtype, DType::kF32);
  }
  EXPECT_EQ(refusal(p_global("torch", "FloatTensor") + ")R" + p_tuple({kFloats, "K\x00"s}) + "b").find("no error"),
            std::string::npos);
}

TEST(TorchZipTest, a_tensor_without_dimensions_or_elements_is_empty) {
  const std::string none = p_storage("FloatStorage", "0", 0);
  const Layout layout =
      parse(torch_zip(p_global("torch._utils", "_rebuild_tensor") + p_tuple({none, "K\x00"s, ")", ")"}) + "R", {""}));
  EXPECT_EQ(layout.tensors[0].shape, Shape{0});
}

TEST(TorchZipTest, parameters_that_were_made_of_a_state_are_read) {
  const std::string tensor = p_tensor(kFloats, 0, {6}, {1});
  const std::string class_name = p_global("torch.nn.parameter", "Parameter");
  for (const std::string& body :
       {class_name + p_tuple({tensor}) + "\x81", class_name + p_tuple({tensor, "\x88"}) + "R",
        class_name + p_tuple({tensor}) + "\x81" + p_tuple({"\x88", "\x89", "}"}) + "b",
        class_name + ")\x81" + p_tuple({tensor, "N", "}", "\x88", "\x89"}) + "b",
        class_name + ")\x81" + p_tuple({kFloats, "K\x00"s, p_integers({6}), p_integers({1})}) + "b"}) {
    const std::string file = torch_zip(body, {kSix});
    const torch::Checkpoint checkpoint = read(file);
    const auto number = checkpoint.tree->tensor_at(checkpoint.tree->graph().root);
    ASSERT_GE(number, 0);
    EXPECT_TRUE(checkpoint.tree->tensors()[static_cast<std::size_t>(number)].is_parameter);
    EXPECT_EQ(parse(file).tensors[0].shape, Shape{6});
  }
  // One that is made of itself.
  EXPECT_NE(refusal(class_name + ")\x81q\x01(h\x01N}\x88\x89tb").find("a tensor that is made of itself"),
            std::string::npos);
}

TEST(TorchZipTest, tensors_with_attributes_are_read) {
  const std::string function = p_global("torch._utils", "_rebuild_tensor_v2");
  const std::string hooks = p_global("collections", "OrderedDict") + ")R";
  const std::string arguments = p_tuple({kFloats, "K\x00"s, p_integers({6}), p_integers({1}), "\x89", hooks});
  const std::string body = p_global("torch._tensor", "_rebuild_from_type_v2") +
                           p_tuple({function, p_global("torch", "Tensor"), arguments, p_dict({{"tag", "K\x07"}})}) +
                           "R";
  const std::string file = torch_zip(body, {kSix});
  const torch::Checkpoint checkpoint = read(file);
  const TorchValue value = torch::resolve(*checkpoint.tree, checkpoint.tree->graph().root, OpaqueValues::kRefuse, "f");
  EXPECT_EQ(value.kind, TorchKind::kTensor);
  EXPECT_NE(value.attributes, TorchValue::kNoValue);
}

TEST(TorchZipTest, dicts_that_are_made_with_their_entries_have_them) {
  const std::string tensor = p_tensor(kFloats, 0, {1}, {1});
  const auto pair = [](const std::string& key, const std::string& value) { return "](" + p_string(key) + value + "e"; };
  const std::string pairs = "](" + pair("a", tensor) + pair("b", tensor) + "e";
  const std::string made = p_global("collections", "OrderedDict") + pairs + "\x85R";
  EXPECT_EQ(names(parse(torch_zip(made, {kSix}))), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(names(parse(torch_zip(made + p_string("c") + tensor + "s", {kSix}))),
            (std::vector<std::string>{"a", "b", "c"}));
  const std::string counter = p_global("collections", "Counter") + p_dict({{"x", "K\x02"}}) + "\x85R";
  const std::string file = torch_zip(counter, {});
  const torch::Checkpoint checkpoint = read(file);
  const TorchValue value = torch::resolve(*checkpoint.tree, checkpoint.tree->graph().root, OpaqueValues::kRefuse, "f");
  EXPECT_EQ(value.kind, TorchKind::kCounter);
  EXPECT_EQ(value.entries.size(), 1u);
  expect_refusal(p_global("collections", "OrderedDict") + "](Ke\x85R"s.replace(2, 1, "K\x01"),
                 "an OrderedDict of what is not a list of pairs");
}

TEST(TorchZipTest, entries_that_many_dicts_are_made_of_are_refused) {
  std::string body = "](](";
  for (int i = 0; i < 200; ++i)
    body +=
        "](K\x01K\x02"
        "e";
  body += "eq\x01";
  for (int i = 0; i < 200; ++i) body += p_global("collections", "OrderedDict") + "h\x01\x85R";
  EXPECT_NE(refusal(body + "e", {}).find("a dict whose entries are used again and again"), std::string::npos);
}

TEST(TorchZipTest, one_storage_may_be_used_as_elements_of_several_types) {
  const std::string body = p_tuple({p_tensor(p_storage("FloatStorage", "0", 0), 0, {0}, {1}),
                                    p_tensor(p_storage("LongStorage", "0", 0), 0, {0}, {1})});
  const Layout layout = parse(torch_zip(body, {""}));
  ASSERT_EQ(layout.tensors.size(), 2u);
  EXPECT_NE(layout.tensors[0].dtype, layout.tensors[1].dtype);
}

// Arrays of NumPy that lie in the pickle.

std::string numpy_dtype(const std::string& type, const std::string& order) {
  return p_global("numpy", "dtype") + p_tuple({p_string(type), "\x89", "\x88"}) + "R" +
         p_tuple({"K\x03", p_string(order), "N", "N", "N"}) + "b";
}

std::string numpy_array(const std::string& type, const std::string& shape, const std::string& data,
                        bool column_major = false) {
  return p_global("numpy.core.multiarray", "_reconstruct") +
         p_tuple({p_global("numpy", "ndarray"), p_integers({0}),
                  "C\x01"
                  "b"}) +
         "R" + p_tuple({"K\x01", shape, type, column_major ? "\x88" : "\x89", data}) + "b";
}

std::vector<std::byte> unpacked(const Layout& layout) {
  std::vector<std::byte> bytes;
  for (const PackedBytes& part : layout.packed) {
    bytes.resize(static_cast<std::size_t>(part.offset));
    part.unpack(MemorySource("", "f"),
                [&](std::span<const std::byte> piece) { bytes.insert(bytes.end(), piece.begin(), piece.end()); });
  }
  return bytes;
}

TEST(TorchZipTest, numpy_arrays_are_tensors_however_their_bytes_are_written) {
  const std::string little = "\x01\x80\x02\x00"s;
  const std::string as_text =
      p_global("_codecs", "encode") + p_string("\x01\xc2\x80\x02\x00"s) + p_string("latin1") + "\x86R";
  for (const std::string& data : {"C\x04" + little, "U\x04" + little, as_text}) {
    const Layout layout =
        parse(torch_zip(p_dict({{"a", numpy_array(numpy_dtype("i2", "<"), p_integers({2}), data)}}), {}));
    ASSERT_EQ(layout.packed_tensors.size(), 1u);
    EXPECT_EQ(layout.packed_tensors[0].name, "a");
    EXPECT_EQ(layout.packed_tensors[0].dtype, DType::kI16);
    EXPECT_EQ(layout.packed_tensors[0].shape, Shape{2});
    const auto bytes = unpacked(layout);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), little);
    EXPECT_TRUE(layout.opaque.empty());
  }
  const Layout big =
      parse(torch_zip(numpy_array(numpy_dtype("i2", ">"), p_integers({2}), "C\x04\x80\x01\x00\x02"s), {}));
  const auto swapped = unpacked(big);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(swapped.data()), swapped.size()), little);
  const Layout columns = parse(torch_zip(numpy_array(numpy_dtype("u1", "|"), p_integers({2, 2}),
                                                     "C\x04"
                                                     "abcd",
                                                     true),
                                         {}));
  EXPECT_EQ(columns.packed_tensors[0].byte_strides, (std::vector<std::int64_t>{1, 2}));
}

TEST(TorchZipTest, arrays_whose_bytes_are_not_those_of_one_are_refused) {
  for (const char* data : {"C\x03"
                           "abc",
                           "C\x05"
                           "abcde"}) {
    const std::string body = numpy_array(numpy_dtype("i2", "<"), p_integers({2}), data);
    EXPECT_NE(refusal(body).find("a NumPy array of I16 [2] whose bytes are not those of one"), std::string::npos);
  }
  EXPECT_NE(refusal(numpy_array(numpy_dtype("f8", "<"), p_integers({std::int64_t{1} << 62}),
                                "C\x01"
                                "a"))
                .find("whose bytes are not those of one"),
            std::string::npos);
}

TEST(TorchZipTest, arrays_of_other_things_than_numbers_are_opaque) {
  for (const auto& [type, order] : std::vector<std::pair<std::string, std::string>>{
           {"O8", "|"}, {"M8", "<"}, {"V8", "|"}, {"S8", "|"}, {"f16", "<"}}) {
    const Layout layout = parse(torch_zip(numpy_array(numpy_dtype(type, order), p_integers({1}),
                                                      "C\x08"
                                                      "12345678"),
                                          {}));
    EXPECT_TRUE(layout.packed_tensors.empty()) << type;
    ASSERT_EQ(layout.opaque.size(), 1u) << type;
    EXPECT_EQ(layout.opaque[0].name, "numpy.ndarray");
  }
}

TEST(TorchZipTest, archives_that_are_no_checkpoints_are_refused_by_what_they_are) {
  EXPECT_EQ(unsupported_of(zip_file({{"a.txt", "hello"}})),
            "f: a zip archive, but not a torch checkpoint: it has no data.pkl");
  EXPECT_EQ(unsupported_of(zip_file({{"data.pkl", "hello"}})),
            "f: a zip archive, but not a torch checkpoint: it has no data.pkl");
  auto script = torch_entries(p_dict({}), {});
  script.push_back({"x/constants.pkl", "\x80\x02)."});
  const std::string program = zip_file(script);
  EXPECT_TRUE(parse(program).tensors.empty());
  EXPECT_EQ(unsupported_error([&] { torch::refuse_opaque(read(program), "f"); }),
            "f: a TorchScript archive, which is a program and not data; opaque=\"keep\" loads the rest");
  auto twice = torch_entries(p_dict({}), {});
  twice.push_back({"y/data.pkl", "\x80\x02N."});
  EXPECT_EQ(refusal_of(zip_file(twice)), "f: the archive has two records called data.pkl");
}

TEST(TorchZipTest, big_endian_files_are_refused) {
  auto entries = torch_entries(p_dict({}), {});
  entries[1].data = "big";
  EXPECT_EQ(unsupported_of(zip_file(entries)), "f: its byte order is \"big\", and only \"little\" can be read");
  entries[1].data = "middle";
  EXPECT_EQ(refusal_of(zip_file(entries)), "f: its byte order is \"middle\", and only \"little\" can be read");
  entries[1].data = std::string(5000, 'x');
  EXPECT_EQ(refusal_of(zip_file(entries)), "f: record \"x/byteorder\" has 5000 bytes, more than the limit of 4096");
  entries.erase(entries.begin() + 1);
  EXPECT_EQ(refusal_of(zip_file(entries)), "no error");
}

TEST(TorchZipTest, a_pickle_that_is_not_the_one_that_was_written_is_refused) {
  auto entries = torch_entries(p_dict({{"k", p_integer(1)}}), {});
  entries[0].local_crc32 = 0x12345678;
  entries[0].central_crc32 = 0x12345678;
  EXPECT_TRUE(refusal_of(zip_file(entries)).starts_with("f: record \"x/data.pkl\" is corrupt: its CRC-32 is "));
  EXPECT_TRUE(refusal_of(zip_file(entries)).ends_with(", the file says 12345678"));
  entries[0].local_crc32 = 0;
  entries[0].central_crc32 = 0;
  EXPECT_EQ(refusal_of(zip_file(entries)), "no error");
}

TEST(TorchZipTest, small_records_that_are_not_those_that_were_written_are_refused) {
  for (const std::string name :
       {"byteorder", ".format_version", ".storage_alignment", "version", ".data/serialization_id"}) {
    std::vector<test::ZipEntry> entries{{"x/data.pkl", test::p_whole("N")}, {"x/" + name, "little"}};
    EXPECT_EQ(refusal_of(zip_file(entries)), "no error") << name;
    entries[1].local_crc32 = 0x12345678;
    entries[1].central_crc32 = 0x12345678;
    EXPECT_EQ(refusal_of(zip_file(entries)),
              "f: record \"x/" + name + "\" is corrupt: its CRC-32 is 19e33d85, the file says 12345678");
    entries[1].local_crc32 = 0;
    entries[1].central_crc32 = 0;
    EXPECT_EQ(refusal_of(zip_file(entries)), "no error") << name;
  }
}

TEST(TorchZipTest, the_checksums_of_storages_are_left_to_verify) {
  auto entries = torch_entries(p_dict({{"a", p_tensor(kFloats, 0, {6}, {1})}}), {kSix});
  entries[2].local_crc32 = 0x12345678;
  entries[2].central_crc32 = 0x12345678;
  EXPECT_EQ(refusal_of(zip_file(entries)), "no error");
}

TEST(TorchZipTest, a_checkpoint_cut_anywhere_is_refused) {
  const std::string whole = torch_zip(p_dict({{"a", p_tensor(kFloats, 0, {2, 3}, {3, 1})}}), {kSix});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(refusal_of(whole.substr(0, length)), "no error") << length;
  }
}

TEST(TorchZipTest, flipped_bits_are_refused_or_lie_in_a_storage) {
  const std::string whole = torch_zip(p_dict({{"a", p_tensor(kFloats, 0, {2, 3}, {3, 1})}}), {kSix});
  const std::size_t data = whole.find(kSix);
  const auto expected = parse(whole).tensors[0];
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string file = whole;
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ (1 << (bit % 8)));
    try {
      const Layout layout = parse(file);
      ASSERT_EQ(layout.tensors.size(), 1u);
      EXPECT_EQ(layout.tensors[0].offset, expected.offset);
      EXPECT_EQ(layout.tensors[0].shape, expected.shape);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFormat);
      EXPECT_TRUE(bit / 8 < data || bit / 8 >= data + kSix.size());
    }
  }
}

// Values other than tensors.

TorchValue root_of(const std::string& body) {
  static std::deque<torch::Checkpoint> kept;  // a value's text is a view of its checkpoint's
  const std::string file = torch_zip(body, {});
  const torch::Checkpoint& checkpoint = kept.emplace_back(torch::read_zip(MemorySource(file, "f")));
  return torch::resolve(*checkpoint.tree, checkpoint.tree->graph().root, OpaqueValues::kRefuse, "f");
}

// Refused where the call, or the global, stands: at the end but for `behind` bytes.
void expect_refused_value(const std::string& body, const std::string& name, std::size_t behind = 0) {
  EXPECT_EQ(unsupported_error([&] { root_of(body); }),
            place(body, behind) + "\"" + name +
                "\" is used in a way that data does not need (opaque=\"keep\" loads "
                "the rest)");
}

TEST(TorchValueTest, calls_that_make_data_become_the_data) {
  EXPECT_EQ(root_of(p_global("torch", "Size") + p_integers({2, 3}) + "\x85R").kind, TorchKind::kSize);
  EXPECT_EQ(root_of(p_global("torch", "device") + p_string("cuda") + "K\x01\x86R").kind, TorchKind::kDevice);
  EXPECT_EQ(root_of(p_global("torch", "bfloat16")).text, "bfloat16");
  EXPECT_EQ(root_of(p_global("builtins", "set") + "](K\x01"
                                                  "e\x85R")
                .items.size(),
            1u);
  EXPECT_EQ(root_of(p_global("builtins", "bytearray") + ")R").kind, TorchKind::kByteArray);
  EXPECT_EQ(root_of(p_global("_codecs", "encode") + p_string("ab") + p_string("latin1") + "\x86R").text, "ab");
  const std::string one = "G\x3f\xf0\x00\x00\x00\x00\x00\x00"s;
  EXPECT_EQ(root_of(p_global("builtins", "complex") + one + one + "\x86R").imaginary, 1.0);
}

TEST(TorchValueTest, calls_that_make_more_than_data_are_refused) {
  const std::string long_one = p_integer(std::int64_t{1} << 40) + "\x85R";
  expect_refused_value(p_global("builtins", "bytearray") + long_one, "builtins.bytearray");
  expect_refused_value(p_global("_codecs", "encode") + p_string("ab") + p_string("hex") + "\x86R", "_codecs.encode");
  expect_refused_value(p_global("torch", "device") + "K\x01\x85R", "torch.device");
  expect_refused_value(p_global("torch", "FloatStorage") + long_one, "torch.FloatStorage");
  const std::string set = p_global("builtins", "set");
  expect_refused_value(set, "builtins.set", set.size() - 1);
  expect_refused_value(p_global("torch", "Size") + ")R}b", "torch.Size", 2);
}

std::string numpy_scalar(const std::string& type, const std::string& order) {
  return p_global("numpy._core.multiarray", "scalar") + "(" + numpy_dtype(type, order) + "C\x08" + std::string(8, 'x') +
         "tR";
}

TEST(TorchValueTest, numpy_scalars_are_read_with_their_byte_order) {
  EXPECT_EQ(root_of(numpy_scalar("f8", "<")).kind, TorchKind::kNumpyScalar);
  EXPECT_EQ(root_of(numpy_scalar("f8", "<")).name, "<f8");
  EXPECT_EQ(root_of(numpy_scalar("f8", ">")).name, ">f8");
  for (const auto& [type, order] :
       std::vector<std::pair<std::string, std::string>>{{"O8", "|"}, {"M8", "<"}, {"V8", "|"}, {"f8,f8", "<"}}) {
    expect_refused_value(numpy_scalar(type, order), "numpy._core.multiarray.scalar");
  }
}

TEST(TorchValueTest, what_is_more_than_data_can_be_kept) {
  const std::string body = p_global("m", "C") + "K\x01\x85\x81" + p_dict({{"a", "K\x02"}}) + "b" +
                           "K\x03"
                           "a" +
                           p_string("k") + "K\x04s";
  const std::string file = torch_zip(body, {});
  const torch::Checkpoint checkpoint = read(file);
  const auto resolve = [&](pickle::NodeId id) {
    return torch::resolve(*checkpoint.tree, id, OpaqueValues::kKeep, "f");
  };
  const TorchValue value = resolve(checkpoint.tree->graph().root);
  ASSERT_EQ(value.kind, TorchKind::kOpaque);
  EXPECT_EQ(value.name, "m.C");
  EXPECT_EQ(resolve(value.opaque.arguments).items.size(), 1u);
  ASSERT_EQ(value.opaque.states.size(), 1u);
  EXPECT_EQ(resolve(value.opaque.states[0]).entries.size(), 1u);
  ASSERT_EQ(value.opaque.items.size(), 1u);
  EXPECT_EQ(resolve(value.opaque.items[0]).integer, 3);
  ASSERT_EQ(value.opaque.entries.size(), 1u);
  EXPECT_EQ(resolve(value.opaque.entries[0].second).integer, 4);
  EXPECT_EQ(unsupported_error([&] { root_of(body); }).find("\"m.C\" is used in a way"), 22u);
}

}  // namespace
}  // namespace penstock
