// Small slices that follow each other are read together.
#include "api/load/slice_windows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "testing/files.h"

namespace penstock {
namespace {

constexpr std::uint64_t kSlice = 100 * kKiB;
constexpr std::uint64_t kFile = 64 * kMiB;

class SliceWindowsTest : public ::testing::Test {
 protected:
  // Reads the slice through the windows, or as a reader does where they have none. What came must be the file's.
  bool take(std::uint64_t begin, std::uint64_t nbytes = kSlice) {
    std::vector<std::byte> out(nbytes);
    const ByteRange range{begin, begin + nbytes};
    const bool from_window = windows_.copy(
        range, kFile, [this](ByteRange window) { return fill(window); }, out.data());
    if (!from_window) {
      windows_.note(range);
      return false;
    }
    EXPECT_TRUE(std::equal(out.begin(), out.end(), contents_.begin() + static_cast<std::ptrdiff_t>(begin)));
    return true;
  }

  std::shared_ptr<const std::byte> fill(ByteRange window) {
    if (fails_) throw Error(ErrorKind::kIo, "the drive");
    const std::lock_guard lock(mutex_);
    filled_.push_back(window);
    auto copy = std::make_shared<std::vector<std::byte>>(contents_.begin() + static_cast<std::ptrdiff_t>(window.begin),
                                                         contents_.begin() + static_cast<std::ptrdiff_t>(window.end));
    return {copy, copy->data()};
  }

  const std::vector<std::byte> contents_ = testing::random_bytes(kFile, 1);
  SliceWindows windows_;
  std::mutex mutex_;
  std::vector<ByteRange> filled_;
  bool fails_ = false;
};

TEST_F(SliceWindowsTest, a_row_of_slices_is_read_in_windows_that_double) {
  EXPECT_FALSE(take(0));
  for (std::uint64_t begin = kSlice; begin + kSlice <= 40 * kMiB; begin += kSlice) EXPECT_TRUE(take(begin));
  ASSERT_GE(filled_.size(), 4u);
  EXPECT_EQ(filled_[0], (ByteRange{kSlice, kSlice + tuning::kFirstSliceWindow}));
  EXPECT_EQ(filled_[1].size(), 2 * tuning::kFirstSliceWindow);
  EXPECT_EQ(filled_[3].size(), tuning::kLargestSliceWindow);
  EXPECT_LE(filled_.size(), 8u);
}

TEST_F(SliceWindowsTest, slices_here_and_there_are_left_to_the_reader) {
  for (const std::uint64_t at : {50, 10, 30, 20, 60, 0, 40}) EXPECT_FALSE(take(at * kMiB));
  EXPECT_TRUE(filled_.empty());
  EXPECT_EQ(windows_.held_bytes(), 0u);
}

TEST_F(SliceWindowsTest, a_window_goes_when_all_of_it_was_taken_and_none_passes_the_end_of_the_file) {
  EXPECT_FALSE(take(kFile - 10 * kSlice));
  for (std::uint64_t left = 9; left > 0; --left) {
    EXPECT_TRUE(take(kFile - left * kSlice));
    EXPECT_EQ(windows_.held_bytes(), left > 1 ? 9 * kSlice : 0);
  }
  EXPECT_EQ(filled_.size(), 1u);
}

TEST_F(SliceWindowsTest, what_windows_hold_is_bounded) {
  for (std::uint64_t row = 0; row < 30; ++row) {
    EXPECT_FALSE(take(row * 2 * kMiB + kMiB / 2, 1 * kKiB) && row == 0);
    take(row * 2 * kMiB + kMiB / 2 + kKiB, 1 * kKiB);
    EXPECT_LE(windows_.held_bytes(), tuning::kMostSliceWindows);
  }
}

TEST_F(SliceWindowsTest, a_slice_across_the_end_of_a_window_opens_the_next) {
  EXPECT_FALSE(take(0, kMiB));
  EXPECT_TRUE(take(kMiB, kMiB + kKiB));
  EXPECT_TRUE(take(2 * kMiB + kKiB, kMiB + kKiB));  // 1 KiB of it is behind the first window
  EXPECT_EQ(filled_.size(), 2u);
  EXPECT_EQ(filled_[1].begin, 2 * kMiB + kKiB);
}

TEST_F(SliceWindowsTest, a_window_that_cannot_be_read_is_an_error_and_then_forgotten) {
  EXPECT_FALSE(take(0));
  fails_ = true;
  EXPECT_THROW(take(kSlice), Error);
  EXPECT_EQ(windows_.held_bytes(), 0u);
  fails_ = false;
  EXPECT_TRUE(take(2 * kSlice));
}

TEST_F(SliceWindowsTest, threads_that_read_one_row_share_its_windows) {
  EXPECT_FALSE(take(0));
  std::atomic<std::uint64_t> next = 1;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (std::uint64_t n = next++; (n + 1) * kSlice <= kFile; n = next++) take(n * kSlice);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::uint64_t read = 0;
  for (const ByteRange& window : filled_) read += window.size();
  EXPECT_LE(read, 2 * kFile);
  EXPECT_LE(filled_.size(), 40u);
}

}  // namespace
}  // namespace penstock
