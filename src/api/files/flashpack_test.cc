// FlashPack end to end: saves, conversions and loads of whole files, whichever way the tensors arrive.
#include "penstock/flashpack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

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
using testing::error_of;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TempDir;

std::vector<std::byte> loaded(const std::filesystem::path& path, std::string_view name) {
  const Tensor tensor = Reader(path).load_slice(name, {});
  return {tensor.bytes.begin(), tensor.bytes.end()};
}

std::vector<float> make_floats(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) / 7 - 100;
  return values;
}

std::vector<std::byte> as_bfloat16(const std::vector<float>& values) {
  std::vector<std::byte> out(values.size() * 2);
  cast_elements(DType::kF32, reinterpret_cast<const std::byte*>(values.data()), DType::kBF16, out.data(),
                values.size());
  return out;
}

// Dtypes of every width, large, small and empty.
struct Model {
  struct Item {
    DType dtype;
    Shape shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Item> items;

  Model() {
    add("wide", DType::kC128, {1000});
    add("big", DType::kF32, {3, 300'001});
    add("half", DType::kBF16, {700, 300});
    add("flag", DType::kBool, {7});
    add("pair", DType::kC32, {11});
    add("empty", DType::kF32, {0, 5});
    add("nothing", DType::kI64, {0});
    add("scalar", DType::kF64, {});
  }

  void add(const std::string& name, DType dtype, const Shape& shape) {
    std::uint64_t nbytes = dtype_bits(dtype) / 8;
    for (const std::int64_t dimension : shape) nbytes *= static_cast<std::uint64_t>(dimension);
    items[name] = {dtype, shape, testing::random_bytes(nbytes, static_cast<std::uint32_t>(items.size() + 1))};
  }

  Stats save(const std::filesystem::path& path, const SaveOptions& options = {}) const {
    Writer writer(path, options);
    for (const auto& [name, item] : items) writer.add(name, item.dtype, item.shape, item.bytes.data());
    return writer.commit();
  }

  void expect_equal(std::span<const Tensor> tensors) const {
    ASSERT_EQ(tensors.size(), items.size());
    for (const Tensor& tensor : tensors) {
      const Item& item = items.at(tensor.name);
      EXPECT_EQ(tensor.dtype, item.dtype) << tensor.name;
      EXPECT_EQ(tensor.shape, item.shape) << tensor.name;
      EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(), item.bytes.begin(), item.bytes.end()))
          << tensor.name;
    }
  }
};

class FlashPackTest : public ::testing::Test {
 protected:
  TempDir directory_;
  const std::filesystem::path path_ = directory_ / "model.flashpack";
  const Model model_;
};

TEST_F(FlashPackTest, what_is_saved_is_what_is_loaded) {
  for (const WriteMethod method : {WriteMethod::kAuto, WriteMethod::kDirect, WriteMethod::kBuffered}) {
    for (const bool align_large : {false, true}) {
      SaveOptions options;
      options.method = method;
      options.landing = align_large ? Landing::kInPlace : Landing::kAuto;
      options.checksums = align_large;
      options.flashpack = {.align_bytes = align_large ? 0u : 128u, .align_large = align_large};
      options.metadata = {{"author", "us"}};
      model_.save(path_, options);
      const Reader reader(path_);
      EXPECT_EQ(reader.files()[0].format, "flashpack");
      EXPECT_EQ(reader.metadata().at("author"), "us");
      for (const CachePolicy cache : {CachePolicy::kAuto, CachePolicy::kDirect, CachePolicy::kMap}) {
        LoadOptions load;
        load.cache = cache;
        load.verify = align_large && cache != CachePolicy::kMap ? Verify::kAny : Verify::kOff;  // what has some
        model_.expect_equal(reader.load(load).tensors);
      }
    }
  }
  EXPECT_THAT(directory_.names(), ElementsAre("model.flashpack"));
}

TEST_F(FlashPackTest, streams_and_targets_get_the_same_bytes) {
  model_.save(path_);
  const Reader reader(path_);
  TensorStream stream = reader.stream();
  std::vector<Tensor> streamed;
  while (auto tensor = stream.next()) streamed.push_back(std::move(*tensor));
  model_.expect_equal(streamed);
  std::map<std::string, std::vector<std::byte>> memory;
  std::vector<Target> targets;
  for (const auto& [name, item] : model_.items) {
    memory[name].resize(item.bytes.size());
    targets.push_back({name, memory[name], std::nullopt});
  }
  reader.load_into(targets);
  for (const auto& [name, item] : model_.items) EXPECT_TRUE(memory[name] == item.bytes) << name;
}

TEST_F(FlashPackTest, a_loaded_tensor_can_be_written_to) {
  model_.save(path_);
  testing::read_file(path_);  // warm: mapped
  LoadResult result = Reader(path_).load();
  for (Tensor& tensor : result.tensors) std::memset(tensor.bytes.data(), 1, tensor.bytes.size());
  model_.expect_equal(Reader(path_).load().tensors);
}

TEST_F(FlashPackTest, padding_is_zero) {
  SaveOptions options;
  options.flashpack.align_bytes = 4096;
  for (const WriteMethod method : {WriteMethod::kAuto, WriteMethod::kBuffered}) {
    options.method = method;
    model_.save(path_, options);
    auto bytes = testing::read_file(path_);
    const Reader reader(path_);
    bytes.resize(bytes.size() - flashpack_footer(path_).size() - 16);
    for (const TensorInfo& tensor : reader.tensors()) {
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(tensor.offset), tensor.nbytes, std::byte{0});
    }
    EXPECT_TRUE(bytes == std::vector<std::byte>(bytes.size()));
  }
}

TEST_F(FlashPackTest, large_tensors_lie_on_pages_when_asked_to) {
  SaveOptions options;
  options.flashpack.align_large = true;
  model_.save(path_, options);
  const Reader reader(path_);
  for (const char* name : {"big", "half"}) EXPECT_EQ(reader.find(name)->offset % 4096, 0u) << name;
  model_.expect_equal(reader.load().tensors);
}

TEST_F(FlashPackTest, the_order_given_can_be_kept) {
  const auto bytes = testing::random_bytes(300);
  SaveOptions options;
  options.flashpack.keep_order = true;
  Writer writer(path_, options);
  writer.add("z", DType::kU8, {10}, bytes.data());
  writer.add("a", DType::kU8, {200}, bytes.data() + 10);
  writer.add("m", DType::kU8, {50}, bytes.data() + 210);
  writer.commit();
  const Reader reader(path_);
  EXPECT_EQ(reader.tensors()[0].name, "z");
  EXPECT_EQ(reader.tensors()[1].name, "a");
  EXPECT_EQ(reader.tensors()[2].name, "m");
}

TEST_F(FlashPackTest, floating_tensors_are_converted_however_they_arrive) {
  const std::size_t rows = 900;
  const std::size_t columns = 700;
  const auto values = make_floats(rows * columns);
  const auto other = make_floats(rows * columns + 1);  // of its own memory, and misaligned
  const std::int32_t integer = 7;
  SaveOptions options;
  options.dtype = DType::kBF16;
  for (const bool in_background : {false, true}) {
    for (const bool snapshot : {true, false}) {
      for (const bool checksums : {false, true}) {
        options.checksums = checksums;
        Writer writer(path_, options);
        writer.add("straight", DType::kF32, {rows, columns}, other.data() + 1);
        const std::int64_t strides[] = {4, 4 * columns};
        writer.add("strided", DType::kF32, {columns, rows}, values.data(), strides);
        writer.add("produced", DType::kF32, {rows * columns}, [&](std::uint64_t offset, std::span<std::byte> out) {
          EXPECT_EQ(offset % 4, 0u);
          EXPECT_EQ(out.size() % 4, 0u);
          std::memcpy(out.data(), reinterpret_cast<const std::byte*>(values.data()) + offset, out.size());
        });
        writer.add("integer", DType::kI32, {}, &integer);
        if (in_background) {
          save_async(std::move(writer), {.snapshot = snapshot}).wait();
        } else {
          writer.commit();
        }
        const Reader reader(path_);
        EXPECT_EQ(reader.find("integer")->dtype, DType::kI32);
        EXPECT_EQ(reader.find("straight")->dtype, DType::kBF16);
        EXPECT_TRUE(loaded(path_, "straight") == as_bfloat16({other.begin() + 1, other.end()}));
        EXPECT_TRUE(loaded(path_, "produced") == as_bfloat16(values));
        std::vector<float> transposed;
        for (std::size_t column = 0; column < columns; ++column) {
          for (std::size_t row = 0; row < rows; ++row) transposed.push_back(values[row * columns + column]);
        }
        EXPECT_TRUE(loaded(path_, "strided") == as_bfloat16(transposed));
        const VerifyReport report = verify(path_);
        EXPECT_TRUE(report.ok);
        EXPECT_EQ(report.had_checksums, checksums);
      }
    }
  }
}

TEST_F(FlashPackTest, a_conversion_to_no_floating_dtype_is_refused) {
  for (const DType dtype : {DType::kI32, DType::kC64, DType::kF4}) {
    SaveOptions options;
    options.dtype = dtype;
    const Error error = error_of([&] { Writer(path_, options); });
    EXPECT_EQ(error.kind(), ErrorKind::kArgument);
    EXPECT_EQ(error.what(),
              path_.string() + ": floating tensors can't be converted to " + std::string(dtype_name(dtype)));
  }
}

TEST_F(FlashPackTest, tensors_over_the_same_bytes_with_other_types_are_not_the_same_when_converted) {
  // The bits of a half and of a bfloat16 mean different numbers, even if both are stored as float32.
  const std::vector<std::uint16_t> codes = {0x3C00, 0x3F80, 0x4000};
  SaveOptions options;
  options.dtype = DType::kF32;
  options.shared = SharedTensors::kDeduplicate;
  Writer writer(path_, options);
  writer.add("h", DType::kF16, {3}, codes.data());
  writer.add("b", DType::kBF16, {3}, codes.data());
  EXPECT_THAT(message_of([&] { writer.commit(); }), HasSubstr("tensors \"b\" and \"h\" partly share memory"));
  EXPECT_TRUE(directory_.names().empty());
}

TEST_F(FlashPackTest, shared_tensors_are_stored_once_when_asked_to) {
  const auto bytes = testing::random_bytes(400);
  SaveOptions options;
  options.dtype = DType::kBF16;
  options.shared = SharedTensors::kDeduplicate;
  Writer writer(path_, options);
  writer.add("b", DType::kF32, {100}, bytes.data());
  writer.add("a", DType::kF32, {100}, bytes.data());
  EXPECT_EQ(writer.commit().tensors, 1u);
  EXPECT_EQ(Reader(path_).metadata().at("b"), "a");
}

TEST_F(FlashPackTest, a_flipped_bit_is_found) {
  SaveOptions options;
  options.checksums = true;
  model_.save(path_, options);
  EXPECT_TRUE(verify(path_).ok);
  EXPECT_EQ(verify(path_).tensors.size(), model_.items.size());
  const TensorInfo wide = *Reader(path_).find("wide");
  testing::flip_bit(path_, wide.offset + 500);
  const VerifyReport report = verify(path_);
  EXPECT_FALSE(report.ok);
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_THAT(report.problems[0], HasSubstr("tensor \"wide\""));
  LoadOptions load;
  load.verify = Verify::kAny;
  EXPECT_THAT(message_of([&] { Reader(path_).load(load); }), HasSubstr("tensor \"wide\" is corrupt"));
}

TEST_F(FlashPackTest, conversions_go_in_both_directions) {
  Model model;
  for (const char* name : {"wide", "pair"}) model.items.erase(name);  // complex types that safetensors lacks
  SaveOptions options;
  options.metadata = {{"author", "us"}};
  options.checksums = true;
  model.save(path_, options);
  convert(path_, directory_ / "there.safetensors");
  const Reader there(directory_ / "there.safetensors");
  EXPECT_EQ(there.files()[0].format, "safetensors");
  EXPECT_EQ(there.metadata(), (Metadata{{"author", "us"}}));
  model.expect_equal(there.load().tensors);
  ConvertOptions back;
  back.save.checksums = true;
  convert(directory_ / "there.safetensors", directory_ / "back.flashpack", back);
  model.expect_equal(Reader(directory_ / "back.flashpack").load().tensors);
  EXPECT_TRUE(verify(directory_ / "back.flashpack").had_checksums);
  EXPECT_TRUE(verify(directory_ / "back.flashpack").ok);
}

TEST_F(FlashPackTest, a_conversion_can_change_dtype_order_and_alignment) {
  const auto values = make_floats(200'000);
  Writer writer(directory_ / "a.safetensors");
  writer.add("f", DType::kF32, {200'000}, values.data());
  writer.add("i", DType::kU8, {3}, "123");
  writer.commit();
  ConvertOptions options;
  options.dtype = DType::kBF16;
  options.save.flashpack = {.align_bytes = 64, .keep_order = true, .align_large = true};
  convert(directory_ / "a.safetensors", path_, options);
  EXPECT_TRUE(loaded(path_, "f") == as_bfloat16(values));
  EXPECT_THAT(flashpack_footer(path_), HasSubstr("\"align_bytes\":64"));
  EXPECT_EQ(Reader(path_).find("f")->offset % 4096, 0u);
}

TEST_F(FlashPackTest, complex_types_that_safetensors_lacks_are_refused_there) {
  model_.save(path_);
  const auto before = directory_.names();
  for (const char* name : {"wide", "pair"}) {
    ConvertOptions options;
    options.select = [&](const TensorInfo& tensor) { return tensor.name == name; };
    const Error error = error_of([&] { convert(path_, directory_ / "x.safetensors", options); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("tensor \"" + std::string(name) + "\""));
    EXPECT_THAT(error.what(), HasSubstr(dtype_name(model_.items.at(name).dtype)));
  }
  EXPECT_EQ(directory_.names(), before);
}

TEST_F(FlashPackTest, packed_types_are_refused) {
  const std::byte bytes[4] = {};
  Writer writer(path_);
  writer.add("q", DType::kF4, {8}, bytes);
  const Error error = error_of([&] { writer.commit(); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("tensor \"q\": FlashPack has no F4"));
  EXPECT_TRUE(directory_.names().empty());
}

TEST_F(FlashPackTest, its_options_are_refused_for_other_formats) {
  for (const FlashPackOptions& changed : {FlashPackOptions{.align_bytes = 64}, FlashPackOptions{.keep_order = true},
                                          FlashPackOptions{.align_large = true}}) {
    SaveOptions options;
    options.flashpack = changed;
    EXPECT_THAT(message_of([&] { Writer(directory_ / "x.safetensors", options); }),
                HasSubstr("alignment and order can be chosen for FlashPack files only"));
    EXPECT_NO_THROW(Writer(path_, options));
  }
}

TEST_F(FlashPackTest, nothing_to_store_is_refused_and_the_old_file_kept) {
  testing::write_file(path_, "old");
  EXPECT_THAT(message_of([&] { Writer(path_).commit(); }), HasSubstr("there is nothing to store"));
  Writer writer(path_);
  writer.add("e", DType::kF32, {0}, static_cast<const void*>(nullptr));
  EXPECT_THAT(message_of([&] { writer.commit(); }), HasSubstr("there is nothing to store"));
  EXPECT_EQ(testing::read_file(path_).size(), 3u);
  EXPECT_THAT(directory_.names(), ElementsAre("model.flashpack"));
}

TEST_F(FlashPackTest, shards_and_their_index_are_written_and_read) {
  SaveOptions options;
  options.max_shard_size = 1 * kMiB;
  options.checksums = true;
  model_.save(path_, options);
  EXPECT_THAT(directory_.names(), ElementsAre("model-00001-of-00002.flashpack", "model-00002-of-00002.flashpack",
                                              "model.flashpack.index.json"));
  for (const auto& path : {directory_.path(), directory_ / "model.flashpack.index.json"}) {
    const Reader reader(path);
    EXPECT_EQ(reader.files().size(), 2u);
    model_.expect_equal(reader.load().tensors);
    EXPECT_TRUE(verify(path).ok);
    EXPECT_TRUE(verify(path).had_checksums);
  }
}

TEST_F(FlashPackTest, a_directory_of_flashpack_files_is_a_checkpoint) {
  std::filesystem::create_directory(directory_ / "m");
  const auto bytes = testing::random_bytes(20);
  for (const std::string name : {"a", "b"}) {
    Writer writer(directory_ / "m" / (name + ".flashpack"));
    writer.add(name, DType::kU8, {10}, bytes.data() + (name == "a" ? 0 : 10));
    writer.commit();
  }
  const Reader reader(directory_ / "m");
  EXPECT_EQ(reader.files().size(), 2u);
  EXPECT_TRUE(loaded(directory_ / "m", "b") == std::vector(bytes.begin() + 10, bytes.end()));
}

TEST_F(FlashPackTest, blocks_are_read_as_tensors) {
  model_.save(path_);
  const Reader blocks = open_flashpack_blocks(path_);
  const Reader tensors(path_);
  // One per dtype; the one of float32 holds two tensors.
  EXPECT_EQ(blocks.tensors().size(), 7u);
  const TensorInfo big = *tensors.find("big");
  const auto block = std::find_if(blocks.tensors().begin(), blocks.tensors().end(),
                                  [&](const TensorInfo& info) { return info.dtype == DType::kF32; });
  ASSERT_NE(block, blocks.tensors().end());
  EXPECT_EQ(block->shape.size(), 1u);
  const auto first = static_cast<std::int64_t>((big.offset - block->offset) / 4);
  const Slice slice[] = {{first + 1000, first + 2000}};
  const Tensor part = blocks.load_slice(block->name, slice);
  EXPECT_EQ(part.shape, Shape{1000});
  EXPECT_EQ(std::memcmp(part.bytes.data(), model_.items.at("big").bytes.data() + 4000, 4000), 0);
  EXPECT_EQ(blocks.load().tensors.size(), 7u);
}

TEST_F(FlashPackTest, blocks_and_footer_of_another_file_are_refused) {
  const auto bytes = testing::random_bytes(10);
  Writer writer(directory_ / "a.safetensors");
  writer.add("a", DType::kU8, {10}, bytes.data());
  writer.commit();
  for (const auto& action :
       std::vector<std::function<void()>>{[&] { open_flashpack_blocks(directory_ / "a.safetensors"); },
                                          [&] { flashpack_footer(directory_ / "a.safetensors"); }}) {
    const Error error = error_of(action);
    EXPECT_EQ(error.kind(), ErrorKind::kFormat);
    EXPECT_THAT(error.what(), HasSubstr("does not end with the mark of a FlashPack file"));
  }
  EXPECT_EQ(error_of([&] { flashpack_footer(directory_ / "missing"); }).kind(), ErrorKind::kNotFound);
  EXPECT_EQ(error_of([&] { flashpack_footer(directory_.path()); }).kind(), ErrorKind::kIsDirectory);
}

TEST_F(FlashPackTest, the_footer_is_given_as_it_stands) {
  const auto bytes = testing::random_bytes(10);
  SaveOptions options;
  options.metadata = {{"k", "v"}};
  Writer writer(path_, options);
  writer.add("a", DType::kU8, {10}, bytes.data());
  writer.commit();
  EXPECT_EQ(flashpack_footer(path_),
            R"({"format":"flashpack_v3","target_dtype":"uint8","align_bytes":128,"total_elems":10,)"
            R"("index":[{"name":"a","shape":[10],"offset":0,"length":10}],"metadata":{"k":"v"}})");
  EXPECT_EQ(std::filesystem::file_size(path_), 10 + flashpack_footer(path_).size() + 16);
}

TEST_F(FlashPackTest, misaligned_blocks_are_loaded_to_aligned_memory) {
  // The doubles start at byte 1 of the file.
  const auto payload = testing::random_bytes(800'001);
  const std::string footer = R"({"format":"flashpack_v4","macroblocks":[)"
                             R"({"dtype":"uint8","offset_bytes":0,"length_bytes":1,"length_elems":1},)"
                             R"({"dtype":"float64","offset_bytes":1,"length_bytes":800000,"length_elems":100000}],)"
                             R"("index":[{"name":"u","shape":[],"offset":0,"length":1,"macroblock":0},)"
                             R"({"name":"d","shape":[100000],"offset":0,"length":100000,"macroblock":1}]})";
  std::string file(reinterpret_cast<const char*>(payload.data()), payload.size());
  file += footer;
  for (int shift = 0; shift < 64; shift += 8) file += static_cast<char>(footer.size() >> shift);
  file += std::string("FLASHPK\0", 8);
  testing::write_file(path_, file);
  for (const CachePolicy cache : {CachePolicy::kDirect, CachePolicy::kBuffered, CachePolicy::kMap}) {
    LoadOptions options;
    options.cache = cache;
    const LoadResult result = Reader(path_).load(options);
    EXPECT_EQ(result.stats.tensors_moved, 1u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(result.tensors[1].bytes.data()) % 8, 0u);
    EXPECT_TRUE(std::equal(payload.begin() + 1, payload.end(), result.tensors[1].bytes.begin()));
  }
}

TEST_F(FlashPackTest, a_save_tells_its_phases_in_their_order) {
  for (const std::uint64_t max_shard_size : {std::uint64_t{0}, kMiB}) {
    SaveOptions options;
    options.max_shard_size = max_shard_size;
    const Stats stats = model_.save(path_, options);
    std::vector<std::string> names;
    double sum = 0;
    for (const Phase& phase : stats.phases) {
      names.push_back(phase.name);
      EXPECT_GE(phase.seconds, 0) << phase.name;
      sum += phase.seconds;
    }
    EXPECT_THAT(names, ElementsAre("build_index", "reserve", "write", "sync", "rename"));
    EXPECT_LE(sum, stats.seconds * 1.001);
  }
}

}  // namespace
}  // namespace penstock
