// Reading torch's zips: where tensors lie, under which names, and what is refused.
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
      p_tuple({p_tensor(bytes, 0, {24}, {1}), "\x88", p_global("collections", "OrderedDict") + ")R"}) + "R";
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
  expect_unsupported(p_tuple({p_string("module"), "N", "N", "N", "N"}) + "Q",
                     "a persistent id that is not a storage's");
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

TEST(TorchZipTest, tensors_whose_bytes_mean_something_else_are_refused) {
  expect_unsupported(p_tensor(kFloats, 0, {1}, {1}, {p_dict({{"conj", "\x88"}})}),
                     "a tensor that is marked \"conj\", which can't be read");
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
  EXPECT_EQ(refusal(bomb("K\x01"), {}), "f: data.pkl: the tree has more than 4000000 values");
  EXPECT_EQ(refusal(bomb(p_tensor(kFloats, 0, {1}, {1}))),
            "f: data.pkl: 1 tensors are repeated more than 1000000 times");
}

TEST(TorchZipTest, paths_that_would_take_much_memory_are_refused) {
  const std::string key(100'000, 'k');
  std::string body = "}" + p_string(key) + "](" + p_tensor(kFloats, 0, {1}, {1}) + "q\x00"s;
  for (int i = 0; i < 10'000; ++i) body += "h\x00"s;
  EXPECT_EQ(refusal(body + "es"), "f: data.pkl: the paths of its tensors take more than 536870912 bytes");
}

TEST(TorchZipTest, many_dimensions_are_refused) {
  const std::vector<std::int64_t> ones(65, 1);
  expect_refusal(p_tensor(kFloats, 0, ones, ones), "a tensor with 65 dimensions, more than 64");
}

TEST(TorchZipTest, deep_and_self_containing_values_are_refused_without_harm) {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "](";
  deep += "N";
  for (int i = 0; i < 100'000; ++i) deep += "e";
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

TEST(TorchZipTest, gadgets_are_refused) {
  const std::string why = " is not one that a checkpoint's data needs; it was not imported";
  const auto unsupported = [](const std::string& body) { return unsupported_of(torch_zip(body, {})); };
  EXPECT_EQ(unsupported(p_global("os", "system") + p_string("true") + "\x85R"),
            "f: data.pkl: byte 2: the global \"os.system\"" + why);
  for (const auto& [module, name] :
       std::vector<std::pair<std::string, std::string>>{{"builtins", "eval"},
                                                        {"builtins", "exec"},
                                                        {"builtins", "getattr"},
                                                        {"__builtin__", "eval"},
                                                        {"torch", "load"},
                                                        {"torch", "hub"},
                                                        {"torch._utils", "_rebuild_wrapper_subclass"},
                                                        {"torch._tensor", "_rebuild_from_type_v2"},
                                                        {"torch.nn.modules.linear", "Linear"},
                                                        {"numpy", "load"},
                                                        {"torch", "FloatStorage.__init__"},
                                                        {"torch", "quint4x2"},
                                                        {"subprocess", "Popen"},
                                                        {"functools", "partial"}}) {
    EXPECT_EQ(unsupported(p_global(module, name)),
              "f: data.pkl: byte 2: the global \"" + module + "." + name + "\"" + why);
  }
}

TEST(TorchZipTest, archives_that_are_no_checkpoints_are_refused_by_what_they_are) {
  EXPECT_EQ(unsupported_of(zip_file({{"a.txt", "hello"}})),
            "f: a zip archive, but not a torch checkpoint: it has no data.pkl");
  EXPECT_EQ(unsupported_of(zip_file({{"data.pkl", "hello"}})),
            "f: a zip archive, but not a torch checkpoint: it has no data.pkl");
  auto script = torch_entries(p_dict({}), {});
  script.push_back({"x/constants.pkl", "\x80\x02)."});
  EXPECT_EQ(unsupported_of(zip_file(script)),
            "f: a TorchScript archive, which is a program and not data, and is not read");
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
  return torch::resolve(*checkpoint.tree, checkpoint.tree->graph().root, "f");
}

// Refused where the call, or the global, stands: at the end but for `behind` bytes.
void expect_refused_value(const std::string& body, const std::string& name, std::size_t behind = 0) {
  EXPECT_EQ(unsupported_error([&] { root_of(body); }),
            place(body, behind) + "\"" + name + "\" is used in a way that data does not need");
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
  expect_refused_value(p_global("collections", "OrderedDict") + "]\x85R", "collections.OrderedDict");
  expect_refused_value(p_global("torch", "Size") + ")R}b", "torch.Size", 2);
}

std::string numpy_scalar(const std::string& type, const std::string& order) {
  return p_global("numpy._core.multiarray", "scalar") + "(" + p_global("numpy", "dtype") +
         p_tuple({p_string(type), "\x89", "\x88"}) + "R" + p_tuple({"K\x03", p_string(order), "N", "N", "N"}) + "b" +
         "C\x08" + std::string(8, 'x') + "tR";
}

TEST(TorchValueTest, numpy_scalars_are_read_where_they_mean_the_same_here) {
  EXPECT_EQ(root_of(numpy_scalar("f8", "<")).kind, TorchKind::kNumpyScalar);
  for (const auto& [type, order] : std::vector<std::pair<std::string, std::string>>{
           {"f8", ">"}, {"O8", "|"}, {"M8", "<"}, {"V8", "|"}, {"f8,f8", "<"}}) {
    expect_refused_value(numpy_scalar(type, order), "numpy._core.multiarray.scalar");
  }
}

}  // namespace
}  // namespace penstock
