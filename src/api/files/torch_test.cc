// torch files end to end: saves, loads by every way in, conversions and checks of whole files.
#include "penstock/torch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>

#include "base/bytes.h"
#include "base/cast.h"
#include "penstock/convert.h"
#include "penstock/error.h"
#include "penstock/writer.h"
#include "testing/errors.h"
#include "testing/files.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TempDir;
using Bytes = std::vector<std::byte>;

const std::filesystem::path kGolden = std::filesystem::path(PENSTOCK_TEST_DATA) / "torch";

Bytes bytes_of(const Tensor& tensor) {
  return {tensor.bytes.begin(), tensor.bytes.end()};
}

std::map<std::string, Bytes> load_all(const std::filesystem::path& path, const LoadOptions& options = {}) {
  std::map<std::string, Bytes> result;
  for (const Tensor& tensor : Reader(path).load(options).tensors) result[tensor.name] = bytes_of(tensor);
  return result;
}

std::map<std::string, Bytes> stream_all(const std::filesystem::path& path) {
  std::map<std::string, Bytes> result;
  TensorStream stream = Reader(path).stream();
  while (const auto tensor = stream.next()) result[tensor->name] = bytes_of(*tensor);
  return result;
}

std::vector<float> floats_of(const Tensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

// Sizes around pages and blocks, so that edges and interiors of every kind appear.
struct Item {
  std::string name;
  DType dtype;
  Shape shape;
  Bytes bytes;
};

std::vector<Item> make_items(DType widest = DType::kC128) {
  std::vector<Item> items;
  const auto add = [&](DType dtype, std::int64_t count) {
    const auto nbytes = static_cast<std::size_t>(count) * dtype_bits(dtype) / 8;
    items.push_back({"t" + std::to_string(items.size()),
                     dtype,
                     {count},
                     testing::random_bytes(nbytes, static_cast<std::uint32_t>(items.size() + 1))});
  };
  for (const std::int64_t count : {0, 1, 4095, 4096, 4097, 8192, 12'345, 3'000'001}) add(DType::kU8, count);
  add(DType::kF32, 1'000'003);
  add(widest, 70'001);
  add(DType::kBF16, 1'500'001);
  for (int i = 0; i < 300; ++i) add(DType::kF32, i % 7);
  return items;
}

void save(const std::filesystem::path& path, const std::vector<Item>& items, const SaveOptions& options,
          bool produced) {
  Writer writer(path, options);
  for (const Item& item : items) {
    if (!produced) {
      writer.add(item.name, item.dtype, item.shape, item.bytes.data());
      continue;
    }
    const std::uint64_t width = dtype_bits(item.dtype) / 8;
    writer.add(item.name, item.dtype, item.shape, [&item, width](std::uint64_t offset, std::span<std::byte> bytes) {
      if (offset % width != 0 || bytes.size() % width != 0) throw std::logic_error("an element was cut in two");
      std::memcpy(bytes.data(), item.bytes.data() + offset, bytes.size());
    });
  }
  writer.commit();
}

void expect_items(const std::filesystem::path& path, const std::vector<Item>& items) {
  const auto loaded = load_all(path);
  EXPECT_EQ(loaded.size(), items.size());
  for (const Item& item : items) EXPECT_TRUE(loaded.at(item.name) == item.bytes) << item.name;
}

TEST(TorchTest, every_way_to_write_gives_the_same_file) {
  const TempDir directory;
  for (const std::string format : {"torch", "torch-legacy", "safetensors", "flashpack"}) {
    const auto items = make_items(format == "safetensors" ? DType::kC64 : DType::kC128);
    std::optional<Bytes> first;
    for (const WriteMethod method : {WriteMethod::kDirect, WriteMethod::kBuffered}) {
      for (const Landing landing : {Landing::kInPlace, Landing::kStaged}) {
        for (const bool produced : {false, true}) {
          SaveOptions options;
          options.format = format;
          options.method = method;
          options.landing = landing;
          options.durable = false;
          options.checksums = !format.starts_with("torch");
          // Where the data starts may follow the memory it comes from.
          if (format == "safetensors" && landing == Landing::kInPlace) continue;
          save(directory / "m", items, options, produced);
          const Bytes file = testing::read_file(directory / "m");
          if (!first) first = file;
          EXPECT_TRUE(file == *first) << format << " " << static_cast<int>(method) << static_cast<int>(landing)
                                      << produced;
        }
      }
    }
    expect_items(directory / "m", items);
    const VerifyReport report = verify(directory / "m");
    EXPECT_TRUE(report.ok) << format << ": " << ::testing::PrintToString(report.problems);
    EXPECT_EQ(report.had_checksums, format != "torch-legacy");
  }
}

TEST(TorchTest, a_safetensors_file_written_straight_from_memory_has_right_checksums) {
  const TempDir directory;
  const auto items = make_items(DType::kC64);
  SaveOptions options;
  options.format = "safetensors";
  options.checksums = true;
  options.landing = Landing::kInPlace;
  save(directory / "m", items, options, false);
  expect_items(directory / "m", items);
  EXPECT_TRUE(verify(directory / "m").ok);
}

// Rewriting torch's own files, under the same name, gives the same bytes.
TEST(TorchTest, files_are_byte_for_byte_those_of_torch) {
  const TempDir directory;
  struct Case {
    std::string name;
    TorchOptions torch;
  };
  for (const Case& each : {Case{"every_dtype.pt", {.alignment = 64}}, Case{"shapes.pt", {.alignment = 64}},
                           Case{"many.pt", {.alignment = 64}}, Case{"align_4096.pt", {.alignment = 4096}},
                           Case{"no_crc.pt", {.alignment = 64, .checksums = false}}}) {
    ConvertOptions options;
    options.save.torch = each.torch;
    convert(kGolden / each.name, directory / each.name, options);
    EXPECT_TRUE(testing::read_file(directory / each.name) == testing::read_file(kGolden / each.name)) << each.name;
  }
}

TEST(TorchTest, zips_and_legacy_files_of_torch_hold_the_same_tensors) {
  const auto expected = load_all(kGolden / "every_dtype.pt");
  EXPECT_EQ(expected.size(), 21u);
  EXPECT_EQ(load_all(kGolden / "every_dtype.legacy.pt"), expected);
  EXPECT_EQ(load_all(kGolden / "no_crc.pt"), expected);
  const auto tree = load_all(kGolden / "tree.pt");
  EXPECT_EQ(tree.size(), 11u);
  for (const char* name : {"tree.legacy.pt", "tree_protocol_3.pt", "tree_protocol_4.pt", "tree_protocol_5.pt",
                           "tree_protocol_4.legacy.pt"}) {
    EXPECT_EQ(load_all(kGolden / name), tree) << name;
  }
}

TEST(TorchTest, views_load_row_major_whichever_way_they_come) {
  for (const char* name : {"tree.pt", "tree.legacy.pt"}) {
    const auto path = kGolden / name;
    const Reader reader(path);
    const auto value = [&](std::string_view tensor) { return floats_of(reader.load_slice(tensor, {})); };
    EXPECT_THAT(value("views/transposed"),
                ElementsAre(0, 6, 12, 18, 1, 7, 13, 19, 2, 8, 14, 20, 3, 9, 15, 21, 4, 10, 16, 22, 5, 11, 17, 23));
    EXPECT_THAT(value("views/columns"), ElementsAre(1, 2, 7, 8, 13, 14, 19, 20));
    EXPECT_THAT(value("views/offset"), ElementsAre(5, 6, 7, 8));
    EXPECT_THAT(value("views/expanded"), ElementsAre(7, 7, 7, 7, 7, 7));
    EXPECT_THAT(value("views/overlapping"), ElementsAre(0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8));
    EXPECT_THAT(value("views/empty"), ElementsAre());
    EXPECT_THAT(floats_of(reader.load_slice("views/transposed", std::vector<Slice>{{1, 3}, {2, 4}})),
                ElementsAre(13, 19, 14, 20));
    EXPECT_THAT(floats_of(reader.load_slice("views/expanded", std::vector<Slice>{{2, 3}})), ElementsAre(7, 7));
    const auto whole = load_all(path);
    EXPECT_EQ(stream_all(path), whole);
    for (const CachePolicy cache : {CachePolicy::kDirect, CachePolicy::kBuffered, CachePolicy::kMap}) {
      LoadOptions options;
      options.cache = cache;
      EXPECT_EQ(load_all(path, options), whole);
    }
    for (const TensorInfo& tensor : reader.tensors()) {
      Bytes target(tensor.nbytes);
      reader.load_into(std::vector<Target>{{tensor.name, target, {}}});
      EXPECT_EQ(target, whole.at(tensor.name)) << tensor.name;
    }
  }
}

TEST(TorchTest, views_are_among_the_tensors_that_are_placed) {
  std::vector<std::string> placed;
  LoadOptions options;
  options.cache = CachePolicy::kDirect;
  options.placed = [&](std::span<const Tensor> tensors) {
    for (const Tensor& tensor : tensors) placed.push_back(tensor.name);
  };
  const LoadResult result = Reader(kGolden / "tree.pt").load(options);
  std::vector<std::string> names;
  for (const Tensor& tensor : result.tensors) names.push_back(tensor.name);
  EXPECT_EQ(placed, names);
}

TEST(TorchTest, views_are_converted_to_other_types_and_formats) {
  const TempDir directory;
  LoadOptions halves;
  halves.dtype = DType::kBF16;
  const auto narrow = load_all(kGolden / "tree.pt", halves);
  const auto wide = load_all(kGolden / "tree.pt");
  for (const auto& [name, bytes] : wide) {
    Bytes expected(bytes.size() / 2);
    cast_elements(DType::kF32, bytes.data(), DType::kBF16, expected.data(), bytes.size() / 4);
    EXPECT_EQ(narrow.at(name), expected) << name;
  }
  for (const char* target : {"m.safetensors", "m.flashpack", "m.pt", "m.legacy.pt"}) {
    ConvertOptions options;
    if (std::string_view(target) == "m.legacy.pt") options.save.format = "torch-legacy";
    convert(kGolden / "tree.pt", directory / target, options);
    EXPECT_EQ(load_all(directory / target), wide) << target;
    options.dtype = DType::kBF16;
    options.overwrite = true;
    convert(kGolden / "tree.pt", directory / target, options);
    EXPECT_EQ(load_all(directory / target), narrow) << target;
  }
}

// A legacy file aligns nothing: blocks cut elements in two.
TEST(TorchTest, what_is_converted_into_a_legacy_file_arrives_whole) {
  const TempDir directory;
  std::vector<float> values(2'000'003);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  for (const char* shift : {"", "a", "ab", "abc"}) {
    SaveOptions options;
    options.format = "torch-legacy";
    options.dtype = DType::kF64;
    options.io.block_size = 64 * kKiB;
    Writer writer(directory / "m.pt", options);
    writer.add(std::string("x") + shift, DType::kF32, {2'000'003}, values.data());
    writer.commit();
    const Tensor tensor = std::move(Reader(directory / "m.pt").load().tensors.front());
    std::vector<double> found(values.size());
    std::memcpy(found.data(), tensor.bytes.data(), tensor.bytes.size());
    EXPECT_TRUE(std::equal(found.begin(), found.end(), values.begin()));
  }
}

TEST(TorchTest, tied_tensors_are_one_in_memory) {
  const LoadResult result = Reader(kGolden / "tree.pt").load();
  const auto find = [&](std::string_view name) {
    return std::find_if(result.tensors.begin(), result.tensors.end(), [&](const Tensor& t) { return t.name == name; });
  };
  EXPECT_EQ(find("model/tied")->bytes.data(), find("model/tied.too")->bytes.data());
}

TEST(TorchTest, verify_names_the_record_that_is_corrupt) {
  const TempDir directory;
  const auto items = make_items();
  save(directory / "m.pt", items, {}, false);
  const std::uint64_t offset = Reader(directory / "m.pt").find("t8")->offset;
  testing::flip_bit(directory / "m.pt", offset + 1'000'000);
  const VerifyReport report = verify(directory / "m.pt");
  EXPECT_FALSE(report.ok);
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_THAT(report.problems[0], HasSubstr("m.pt: record \"m/data/8\" is corrupt: its CRC-32 is "));
  for (const VerifiedTensor& tensor : report.tensors) EXPECT_EQ(tensor.ok, tensor.name != "t8") << tensor.name;
  LoadOptions options;
  options.verify = Verify::kAny;
  EXPECT_THAT(message_of([&] { Reader(directory / "m.pt").load(options); }),
              HasSubstr("record \"m/data/8\" is corrupt"));
  EXPECT_THAT(message_of([&] {
                TensorStream stream = Reader(directory / "m.pt").stream(options);
                while (const auto tensor = stream.next()) EXPECT_NE(tensor->name, "t8");
              }),
              HasSubstr("record \"m/data/8\" is corrupt"));
  VerifyOptions structure;
  structure.checksums = Verify::kOff;
  EXPECT_TRUE(verify(directory / "m.pt", structure).ok);
}

TEST(TorchTest, verify_reads_every_byte_once_and_tells_of_all_of_them) {
  const TempDir directory;
  save(directory / "m.pt", make_items(), {}, false);
  for (const CachePolicy cache : {CachePolicy::kDirect, CachePolicy::kBuffered}) {
    LoadOptions options;
    options.cache = cache;
    const Stats plain = Reader(directory / "m.pt").load(options).stats;
    options.verify = Verify::kAny;
    std::uint64_t told = 0;
    options.progress = [&](const Progress& progress) {
      told = progress.bytes_total;
      return true;
    };
    const Stats verified = Reader(directory / "m.pt").load(options).stats;
    EXPECT_EQ(verified.bytes, plain.bytes);
    EXPECT_EQ(told, verified.bytes_direct + verified.bytes_buffered);
    EXPECT_LT(verified.bytes_on_drive, plain.bytes_on_drive + plain.bytes_on_drive / 4);
  }
}

TEST(TorchTest, verify_looks_at_the_part_of_a_storage_that_no_tensor_has) {
  const TempDir directory;
  const auto copy = directory / "tree.pt";
  testing::write_file(copy, testing::read_file(kGolden / "tree.pt"));
  const Reader reader(copy);
  const TensorInfo* view = nullptr;
  for (const TensorInfo& tensor : reader.tensors()) {
    if (!tensor.byte_strides.empty() && tensor.extent() > tensor.nbytes) view = &tensor;
  }
  ASSERT_NE(view, nullptr) << "the golden file has no view with a gap";
  // Between two elements of the view: it is not read with them, and yet it is the record's.
  const std::uint64_t width = dtype_bits(view->dtype) / 8;
  LoadOptions options;
  options.verify = Verify::kAny;
  options.select = [&](const TensorInfo& tensor) { return tensor.name == view->name; };
  EXPECT_EQ(reader.load(options).tensors.size(), 1u);
  const std::string name = view->name;
  testing::flip_bit(copy, view->offset + width);
  EXPECT_THAT(message_of([&] { Reader(copy).load(options); }), HasSubstr("is corrupt: its CRC-32 is "));
}

TEST(TorchTest, a_bit_that_flips_anywhere_is_found_or_means_nothing) {
  const TempDir directory;
  const Bytes whole = testing::read_file(kGolden / "tree.pt");
  const auto expected = load_all(kGolden / "tree.pt");
  std::size_t unnoticed = 0;
  for (std::size_t byte = 0; byte < whole.size(); ++byte) {
    Bytes file = whole;
    file[byte] ^= std::byte{4};
    testing::write_file(directory / "m.pt", file);
    try {
      if (!verify(directory / "m.pt").ok) continue;
      ++unnoticed;
      EXPECT_EQ(load_all(directory / "m.pt"), expected) << byte;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFormat) << byte;
    }
  }
  EXPECT_LT(unnoticed, whole.size() / 2);  // padding, versions and times
}

TEST(TorchTest, files_without_checksums_verify_and_say_so) {
  const VerifyReport report = verify(kGolden / "no_crc.pt");
  EXPECT_TRUE(report.ok);
  EXPECT_FALSE(report.had_checksums);
  EXPECT_TRUE(verify(kGolden / "tree.pt").had_checksums);
  EXPECT_FALSE(verify(kGolden / "tree.legacy.pt").had_checksums);
}

TEST(TorchTest, not_finite_elements_between_those_of_a_view_are_not_its_own) {
  const TempDir directory;
  std::filesystem::copy(kGolden / "tree.legacy.pt", directory / "m.pt");
  const Reader reader(kGolden / "tree.legacy.pt");
  const std::uint64_t base = reader.find("views/transposed")->offset;
  std::fstream file(directory / "m.pt", std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(base + 3 * sizeof(float)));  // element 3: in no row of columns 1 and 2
  const float nan = std::numeric_limits<float>::quiet_NaN();
  file.write(reinterpret_cast<const char*>(&nan), sizeof nan);
  file.close();
  VerifyOptions options;
  options.finite = true;
  std::map<std::string, std::uint64_t> found;
  for (const VerifiedTensor& tensor : verify(directory / "m.pt", options).tensors) {
    if (tensor.not_finite > 0) found[tensor.name] = tensor.not_finite;
  }
  EXPECT_EQ(found, (std::map<std::string, std::uint64_t>{
                       {"model/tied", 1}, {"model/tied.too", 1}, {"views/overlapping", 1}, {"views/transposed", 1}}));
}

TEST(TorchTest, programs_give_up_their_tensors_and_are_refused_as_trees) {
  EXPECT_THAT(message_of([] { TorchCheckpoint checkpoint(kGolden / "script.pt"); }),
              HasSubstr("script.pt: a TorchScript archive"));
  const TorchCheckpoint kept(kGolden / "script.pt", OpaqueValues::kKeep);
  EXPECT_EQ(kept.value(kept.root()).kind, TorchKind::kOpaque);
  const Reader reader(kGolden / "script.pt");
  ASSERT_EQ(reader.files()[0].opaque.size(), 1u);
  EXPECT_EQ(reader.files()[0].opaque[0].name, kept.value(kept.root()).name);
  EXPECT_TRUE(reader.load().tensors.empty());  // this one has none
  EXPECT_EQ(verify(kGolden / "script.pt").opaque.size(), 1u);
}

TEST(TorchTest, names_that_torch_does_not_take_for_a_folder_become_archive) {
  const TempDir directory;
  const auto items = make_items();
  for (const char* name : {"mod\xc3\xa8le.pt", "\xff.pt"}) {
    save(directory / name, items, {}, false);
    expect_items(directory / name, items);
    EXPECT_TRUE(verify(directory / name).ok);
  }
}

TEST(TorchTest, more_records_than_16_bits_can_count_are_written_and_read) {
  const TempDir directory;
  SaveOptions options;
  options.durable = false;
  Writer writer(directory / "m.pt", options);
  constexpr std::byte kByte{7};
  options.shared = SharedTensors::kDuplicate;
  for (int i = 0; i < 70'000; ++i)
    writer.add(std::to_string(i), DType::kU8, {1}, [](std::uint64_t, std::span<std::byte> out) { out[0] = kByte; });
  writer.commit();
  const Reader reader(directory / "m.pt");
  EXPECT_EQ(reader.tensors().size(), 70'000u);
  EXPECT_EQ(reader.load_slice("69999", {}).bytes[0], std::byte{7});
  EXPECT_TRUE(verify(directory / "m.pt").ok);
}

TEST(TorchTest, an_expanded_tensor_cannot_claim_more_than_the_file) {
  const TempDir directory;
  std::string text;
  {
    const Bytes bytes = testing::read_file(kGolden / "tree.legacy.pt");
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  // The shape (3, 2) of the expanded view, whose strides are (0, 0), becomes (255, 255).
  const std::size_t at = text.find("K\x03K\x02\x86q");
  ASSERT_NE(at, std::string::npos);
  text[at + 1] = text[at + 3] = static_cast<char>(0xff);
  testing::write_file(directory / "m.pt", text);
  const Reader reader(directory / "m.pt");
  EXPECT_EQ(reader.find("views/expanded")->nbytes, 255u * 255 * 4);
  EXPECT_THAT(message_of([&] { reader.load(); }),
              HasSubstr("tensor \"views/expanded\" repeats its 4 bytes to 260100, more than the file has"));
}

TEST(TorchTest, the_tree_of_a_checkpoint_is_data) {
  const TorchCheckpoint checkpoint(kGolden / "tree.pt");
  const TorchValue root = checkpoint.value(checkpoint.root());
  ASSERT_EQ(root.kind, TorchKind::kDict);
  std::map<std::string, TorchValue> values;
  for (const auto& [key, value] : root.entries)
    values[std::string(checkpoint.value(key).text)] = checkpoint.value(value);
  EXPECT_EQ(values.at("epoch").integer, 12);
  EXPECT_EQ(values.at("big").kind, TorchKind::kBigInteger);
  EXPECT_EQ(values.at("negative").integer, -5);
  EXPECT_EQ(values.at("pi").number, 3.25);
  EXPECT_EQ(values.at("name").text, "n\xc3\xa4me");
  EXPECT_EQ(values.at("complex").imaginary, -2.0);
  EXPECT_EQ(values.at("set").items.size(), 2u);
  EXPECT_EQ(values.at("model").kind, TorchKind::kOrderedDict);
  EXPECT_EQ(values.at("dtype").text, "bfloat16");
  EXPECT_EQ(values.at("scalar").kind, TorchKind::kNumpyScalar);
  EXPECT_EQ(checkpoint.storages().size(), 4u);
  EXPECT_EQ(checkpoint.open_storages().load().tensors.size(), 4u);
}

// --- the two phases of a save with checksums ---

TEST(TorchSaveTest, an_error_of_a_producer_leaves_the_old_file_in_either_phase) {
  const TempDir directory;
  testing::write_file(directory / "m.pt", "old");
  for (const std::uint64_t bad : {0u, 500'000u, 999'999u}) {
    Writer writer(directory / "m.pt");
    writer.add("x", DType::kU8, {1'000'000}, [bad](std::uint64_t offset, std::span<std::byte> bytes) {
      if (offset <= bad && bad < offset + bytes.size()) throw Error(ErrorKind::kIo, "the producer failed");
    });
    EXPECT_EQ(message_of([&] { writer.commit(); }), "the producer failed");
    EXPECT_EQ(testing::read_file(directory / "m.pt").size(), 3u);
    EXPECT_THAT(directory.names(), ElementsAre("m.pt"));
  }
}

TEST(TorchSaveTest, a_cancelled_save_leaves_the_old_file_in_either_phase) {
  const TempDir directory;
  testing::write_file(directory / "m.pt", "old");
  const auto bytes = testing::random_bytes(8 * kMiB);
  for (const bool at_once : {true, false}) {
    SaveOptions options;
    // All but the edges is written in the first phase.
    options.progress = [&](const Progress& now) { return !at_once && now.bytes_done < 8 * kMiB - 2 * 4096; };
    Writer writer(directory / "m.pt", options);
    writer.add("x", DType::kU8, {8 * kMiB}, bytes.data());
    EXPECT_EQ(message_of([&] { writer.commit(); }), "cancelled");
    EXPECT_EQ(testing::read_file(directory / "m.pt").size(), 3u);
    EXPECT_THAT(directory.names(), ElementsAre("m.pt"));
  }
}

TEST(TorchSaveTest, a_limit_that_is_met_leaves_the_old_file) {
  const TempDir directory;
  testing::write_file(directory / "m.pt", "old");
  const auto bytes = testing::random_bytes(3 * kMiB);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  // The data fits, what follows it does not; and the data does not fit.
  for (const rlim_t limit : {rlim_t{3 * kMiB + 4096}, rlim_t{kMiB}}) {
    const rlimit small{limit, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
    Writer writer(directory / "m.pt");
    writer.add("x", DType::kU8, {3 * kMiB}, bytes.data());
    const std::string message = message_of([&] { writer.commit(); });
    ::setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_THAT(message, HasSubstr("File too large"));
    EXPECT_EQ(testing::read_file(directory / "m.pt").size(), 3u);
    EXPECT_THAT(directory.names(), ElementsAre("m.pt"));
  }
  std::signal(SIGXFSZ, handler);
}

TEST(TorchSaveTest, a_shorter_file_leaves_no_tail_of_a_longer_one) {
  const TempDir directory;
  testing::write_file(directory / "m.pt", testing::random_bytes(5 * kMiB));
  const auto items = make_items();
  const std::vector<Item> few(items.begin(), items.begin() + 4);
  save(directory / "m.pt", few, {}, false);
  expect_items(directory / "m.pt", few);
}

TEST(TorchSaveTest, what_a_torch_file_can_not_hold_is_refused) {
  const TempDir directory;
  SaveOptions options;
  options.metadata = {{"k", "v"}};
  EXPECT_THAT(message_of([&] { Writer writer(directory / "m.pt", options); }), HasSubstr("holds no metadata"));
  options = {};
  options.torch.alignment = 65536;
  const std::byte byte{};
  Writer writer(directory / "m.pt", options);
  writer.add("x", DType::kU8, {1}, &byte);
  EXPECT_EQ(message_of([&] { writer.commit(); }), "an alignment of 65536: expected a power of two up to 32768");
  Writer packed(directory / "m.pt");
  packed.add("x", DType::kF4, {2}, &byte);
  EXPECT_THAT(message_of([&] { packed.commit(); }), HasSubstr("torch has no F4"));
  EXPECT_TRUE(directory.names().empty());
}

}  // namespace
}  // namespace penstock
