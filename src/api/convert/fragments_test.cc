// What FastPersist's writers leave in pieces, joined by convert().
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "format/test_pickle.h"
#include "format/torch_fragments.h"
#include "penstock/convert.h"
#include "penstock/error.h"
#include "penstock/torch.h"
#include "penstock/writer.h"
#include "testing/files.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::TempDir;

std::string read_all(const fs::path& path) {
  const std::vector<std::byte> bytes = testing::read_file(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class FragmentsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::iota(values_.begin(), values_.end(), 0.0f);
    SaveOptions options;
    options.format = "torch-legacy";
    Writer writer(directory_ / "whole", options);
    writer.add("large", DType::kF32, {static_cast<std::int64_t>(values_.size())}, values_.data());
    writer.add("small", DType::kU8, {5}, "12345");
    writer.add("empty", DType::kI64, {0}, nullptr);
    writer.commit();
    whole_ = read_all(directory_ / "whole");
    fs::remove(directory_ / "whole");
    stream_ = values_.size() * sizeof(float) + 5 + 3 * 8;
    fs::create_directory(folder_);
  }

  // As `count` writers leave a file called `stem`.
  std::vector<fs::path> write_fragments(const std::string& stem, std::uint32_t count) {
    const std::size_t head = whole_.size() - stream_;
    std::vector<fs::path> paths;
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      const ByteRange share = torch::fragment_share(stream_, rank, count);
      paths.push_back(folder_ / torch::fragment_name(stem, rank, count));
      testing::write_file(paths.back(), whole_.substr(0, head) + whole_.substr(head + share.begin, share.size()));
    }
    return paths;
  }

  Error error_of(const std::vector<fs::path>& sources, const ConvertOptions& options = {}) {
    try {
      convert(sources, directory_ / "out.pt", options);
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      EXPECT_THAT(directory_.names(), ElementsAre("folder"));
      return error;
    }
    return Error(ErrorKind::kIo, "no error");
  }

  TempDir directory_;
  const fs::path folder_ = directory_ / "folder";
  std::vector<float> values_ = std::vector<float>(3'000'001);
  std::string whole_;
  std::uint64_t stream_ = 0;
};

TEST_F(FragmentsTest, joined_they_are_the_file_of_one_writer) {
  for (const std::uint32_t count : {1u, 2u, 3u, 8u}) {
    std::vector<fs::path> paths = write_fragments("model.pt", count);
    std::reverse(paths.begin(), paths.end());
    const fs::path target = directory_ / ("joined-" + std::to_string(count) + ".pt");
    const Stats stats = convert(paths, target);
    EXPECT_EQ(stats.bytes, values_.size() * sizeof(float) + 5);
    EXPECT_TRUE(read_all(target) == whole_) << count;
    for (const fs::path& path : paths) fs::remove(path);
  }
}

TEST_F(FragmentsTest, a_directory_or_the_name_of_the_file_stand_for_all_of_them) {
  write_fragments("model.pt", 4);
  testing::write_file(folder_ / "latest", "global_step1");
  convert(folder_, directory_ / "by_directory.pt");
  convert(folder_ / "model.pt", directory_ / "by_name.pt");
  EXPECT_TRUE(read_all(directory_ / "by_directory.pt") == whole_);
  EXPECT_TRUE(read_all(directory_ / "by_name.pt") == whole_);
}

TEST_F(FragmentsTest, they_become_any_other_format_too) {
  write_fragments("model.pt", 3);
  for (const std::string suffix : {"safetensors", "flashpack"}) {
    const fs::path target = directory_ / ("out." + suffix);
    ConvertOptions options;
    options.select = [](const TensorInfo& tensor) { return tensor.name != "empty"; };
    options.dtype = DType::kF64;
    convert(folder_ / "model.pt", target, options);
    const Reader reader(target);
    const Tensor large = reader.load_slice("large", {});
    ASSERT_EQ(large.dtype, DType::kF64);
    for (std::size_t i = 0; i < values_.size(); ++i) ASSERT_EQ(large.data<double>()[i], values_[i]);
    EXPECT_EQ(reader.find("small")->nbytes, 5u);
    EXPECT_EQ(reader.find("empty"), nullptr);
  }
  ConvertOptions zip;
  zip.save.format = "torch";
  convert(folder_ / "model.pt", directory_ / "zip.pt", zip);
  EXPECT_EQ(Reader(directory_ / "zip.pt").files()[0].format, "torch");
  EXPECT_TRUE(verify(directory_ / "zip.pt").ok);
}

TEST_F(FragmentsTest, other_names_need_another_file) {
  write_fragments("model.pt", 3);
  ConvertOptions options;
  options.rename = [](std::string_view name) { return "model." + std::string(name); };
  convert(folder_ / "model.pt", directory_ / "renamed.pt", options);
  const Reader reader(directory_ / "renamed.pt");
  EXPECT_EQ(reader.find("small"), nullptr);
  EXPECT_EQ(reader.find("model.small")->nbytes, 5u);
}

TEST_F(FragmentsTest, views_that_lie_across_fragments_are_gathered) {
  using namespace test;
  std::string bytes(24 * sizeof(float), '\0');
  std::memcpy(bytes.data(), values_.data(), bytes.size());
  const std::string body = p_dict({{"turned", p_tensor(legacy_storage("FloatStorage", "1", 24), 0, {6, 4}, {1, 6})}});
  whole_ = legacy_file(body, {"1"}, little(std::uint64_t{24}) + bytes);
  stream_ = 8 + bytes.size();
  write_fragments("view.pt", 5);
  convert(folder_, directory_ / "out.safetensors");
  const Tensor turned = Reader(directory_ / "out.safetensors").load_slice("turned", {});
  for (int row = 0; row < 6; ++row) {
    for (int column = 0; column < 4; ++column) {
      EXPECT_EQ(turned.data<float>()[row * 4 + column], static_cast<float>(column * 6 + row));
    }
  }
}

TEST_F(FragmentsTest, a_fragment_that_is_missing_is_named) {
  const auto paths = write_fragments("model.pt", 3);
  const std::string why = ": missing; \"model.pt\" was written in 3 fragments, and ";
  const Error two = error_of({paths[0], paths[2]});
  EXPECT_EQ(two.kind(), ErrorKind::kNotFound);
  EXPECT_EQ(two.what(), paths[1].native() + why + "2 of them are here");
  EXPECT_EQ(error_of({paths[2]}).what(), paths[0].native() + why + "1 of them are here");
  fs::remove(paths[1]);
  EXPECT_EQ(error_of({folder_}).what(), paths[1].native() + why + "2 of them are here");
  EXPECT_EQ(error_of({folder_ / "model.pt"}).what(), paths[1].native() + why + "2 of them are here");
}

TEST_F(FragmentsTest, fragments_that_do_not_belong_together_are_named) {
  const auto two = write_fragments("model.pt", 2);
  const auto three = write_fragments("model.pt", 3);
  const auto other = write_fragments("optim.pt", 2);
  const Error mixed = error_of({two[0], three[1]});
  EXPECT_EQ(mixed.kind(), ErrorKind::kArgument);
  EXPECT_EQ(mixed.what(), three[1].native() + ": one of 3 fragments, and " + two[0].native() +
                              " is one of 2: they are not of one save");
  EXPECT_EQ(error_of({two[0], other[1]}).what(),
            other[1].native() + ": a fragment of \"optim.pt\", and " + two[0].native() + " is one of \"model.pt\"");
  EXPECT_EQ(error_of({two[0], two[0], two[1]}).what(),
            two[0].native() + ": fragment 0 of 2, and so is " + two[0].native());
  testing::write_file(folder_ / "plain.pt", "hello");
  EXPECT_EQ(error_of({two[0], folder_ / "plain.pt"}).what(),
            (folder_ / "plain.pt").native() + ": not a fragment, as " + two[0].native() + " beside it is by its name");
  EXPECT_EQ(error_of({folder_}).what(), folder_.native() +
                                            ": the directory has the fragments of 2 files, \"model.pt\" and "
                                            "\"optim.pt\" among them; name those of one");
}

TEST_F(FragmentsTest, a_cut_fragment_leaves_the_target_alone) {
  const auto paths = write_fragments("model.pt", 2);
  fs::resize_file(paths[1], fs::file_size(paths[1]) - 1);
  const Error error = error_of(paths);
  EXPECT_EQ(error.kind(), ErrorKind::kFormat);
  EXPECT_THAT(error.what(), ::testing::StartsWith(paths[1].native() + ": it has "));
}

TEST_F(FragmentsTest, a_fragment_is_never_the_target) {
  const auto paths = write_fragments("model.pt", 2);
  ConvertOptions options;
  options.overwrite = true;
  options.save.format = "torch-legacy";
  EXPECT_THROW(convert(paths, paths[0], options), Error);
  options.overwrite = false;
  testing::write_file(directory_ / "there.pt", "old");
  EXPECT_THROW(convert(paths, directory_ / "there.pt", options), Error);
  EXPECT_EQ(read_all(directory_ / "there.pt"), "old");
}

// torch.save without DeepSpeed's changes gives every writer the whole file.
TEST_F(FragmentsTest, a_whole_file_that_is_called_a_fragment_is_converted_alone) {
  testing::write_file(folder_ / "model.pt-0.2", whole_);
  testing::write_file(folder_ / "model.pt-1.2", whole_);
  convert(folder_ / "model.pt-0.2", directory_ / "alone.safetensors");
  EXPECT_EQ(Reader(directory_ / "alone.safetensors").tensors().size(), 3u);
  fs::remove(directory_ / "alone.safetensors");
  EXPECT_EQ(error_of({folder_}).what(),
            (folder_ / "model.pt-0.2").native() + ": not a fragment, but a whole file; convert it alone");
}

TEST_F(FragmentsTest, one_alone_is_refused_by_what_it_is) {
  const auto paths = write_fragments("model.pt", 2);
  try {
    Reader reader(paths[1]);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupportedFormat);
    EXPECT_EQ(error.what(),
              paths[1].native() + ": fragment 1 of 2 of \"model.pt\", which can't be read alone; convert joins them");
  }
}

}  // namespace
}  // namespace penstock
