// Slices of a cached file share a mapping, and no byte of it.
#include "api/load/slice_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "penstock/reader.h"
#include "penstock/writer.h"
#include "testing/files.h"

namespace penstock {
namespace {

constexpr std::uint64_t kTensorSize = 3 * kMiB + 64;

class SliceMapTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Writer writer(path_);
    for (std::size_t i = 0; i < contents_.size(); ++i) {
      writer.add("t" + std::to_string(i), DType::kU8, {kTensorSize}, contents_[i].data());
    }
    writer.commit();
    testing::fill_page_cache(path_, 0, std::filesystem::file_size(path_));
  }

  bool is_content(const Tensor& tensor, std::size_t number) const {
    return std::equal(tensor.bytes.begin(), tensor.bytes.end(), contents_[number].begin(), contents_[number].end());
  }

  const testing::TempDir directory_;
  const std::filesystem::path path_ = directory_ / "m.safetensors";
  const std::vector<std::vector<std::byte>> contents_ = {testing::random_bytes(kTensorSize, 1),
                                                         testing::random_bytes(kTensorSize, 2),
                                                         testing::random_bytes(kTensorSize, 3)};
};

TEST_F(SliceMapTest, neighbours_in_the_file_are_neighbours_in_memory) {
  const Reader reader(path_);
  const Tensor first = reader.load_slice("t0", {});
  const Tensor second = reader.load_slice("t1", {});
  EXPECT_EQ(second.bytes.data() - first.bytes.data(),
            static_cast<std::ptrdiff_t>(reader.find("t1")->offset - reader.find("t0")->offset));
  EXPECT_TRUE(is_content(first, 0));
  EXPECT_TRUE(is_content(second, 1));
}

TEST_F(SliceMapTest, writing_to_one_tensor_changes_no_other_that_is_read_of_the_same_bytes) {
  const Reader reader(path_);
  const Tensor first = reader.load_slice("t1", {});
  const Tensor neighbour = reader.load_slice("t0", {});
  std::memset(const_cast<std::byte*>(first.bytes.data()), 7, first.bytes.size());
  EXPECT_TRUE(is_content(reader.load_slice("t1", {}), 1));
  const Slice part{kMiB, 2 * kMiB};
  const Tensor of_it = reader.load_slice("t1", {&part, 1});
  EXPECT_TRUE(std::equal(of_it.bytes.begin(), of_it.bytes.end(), contents_[1].begin() + kMiB));
  EXPECT_TRUE(is_content(neighbour, 0));
  EXPECT_EQ(first.bytes[kMiB], std::byte{7});
}

TEST_F(SliceMapTest, bytes_that_somebody_had_and_changed_are_the_files_for_the_next) {
  const Reader reader(path_);
  const Tensor kept = reader.load_slice("t0", {});
  {
    const Tensor first = reader.load_slice("t1", {});
    std::memset(const_cast<std::byte*>(first.bytes.data()), 7, first.bytes.size());
  }
  EXPECT_TRUE(is_content(reader.load_slice("t1", {}), 1));
  EXPECT_TRUE(is_content(reader.load_slice("t2", {}), 2));
  EXPECT_TRUE(is_content(kept, 0));
}

TEST_F(SliceMapTest, slices_outlive_their_reader) {
  Tensor tensor;
  {
    const Reader reader(path_);
    tensor = reader.load_slice("t2", {});
  }
  EXPECT_TRUE(is_content(tensor, 2));
}

}  // namespace
}  // namespace penstock
