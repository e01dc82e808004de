// Whole transfers over every backend, with and without faults.
#include "io/queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "base/unique_fd.h"
#include "testing/fault_engine.h"
#include "testing/files.h"

namespace penstock {
namespace {

using testing::Faults;
using testing::NamedFactory;
using testing::TempDir;
using testing::with_faults;

class QueueTest : public ::testing::TestWithParam<NamedFactory> {
 protected:
  static constexpr std::uint32_t kChunk = 16 * 1024;

  // Reads the file through a queue whose engine has `faults`; returns how each chunk ended.
  std::vector<Finished> read_all(const Faults& faults, std::vector<std::byte>& out, std::uint32_t alignment = 1) {
    const UniqueFd fd(::open((directory_ / "file").c_str(), O_RDONLY));
    const auto engine = with_faults(GetParam().make, faults)(4);
    RequestQueue queue(*engine, 4);
    std::vector<Finished> finished;
    for (std::uint64_t offset = 0; offset < out.size() || !queue.idle();) {
      while (offset < out.size() && !queue.full()) {
        const auto length = static_cast<std::uint32_t>(std::min<std::uint64_t>(kChunk, out.size() - offset));
        Transfer transfer{
            {IoRequest::Operation::kRead, fd.get(), out.data() + offset, length, offset}, length, alignment};
        transfer.request.tag = offset / kChunk;
        queue.push(transfer);
        offset += length;
      }
      finished.push_back(queue.wait());
    }
    resumed_ = queue.resumed();
    return finished;
  }

  TempDir directory_;
  std::uint64_t resumed_ = 0;
};

TEST_P(QueueTest, faults_that_pass_are_not_seen) {
  const auto content = testing::random_bytes(40 * kChunk + 1234);
  testing::write_file(directory_ / "file", content);
  for (std::uint32_t seed = 1; seed <= 5; ++seed) {
    Faults faults{.seed = seed, .short_transfer = 0.4, .interrupted = 0.1, .try_again = 0.1, .held_back = 0.3};
    std::vector<std::byte> out(content.size());
    for (const Finished& finished : read_all(faults, out)) {
      EXPECT_EQ(finished.error_number, 0);
      EXPECT_FALSE(finished.ended_early);
    }
    EXPECT_EQ(out, content);
    EXPECT_GT(resumed_, 0u);
  }
}

TEST_P(QueueTest, a_failed_request_says_where_and_why) {
  testing::write_file(directory_ / "file", testing::random_bytes(8 * kChunk));
  std::vector<std::byte> out(8 * kChunk);
  const auto all = read_all({.fail_at = 3, .error_number = EIO}, out);
  ASSERT_EQ(all.size(), 8u);
  const auto failed = std::find_if(all.begin(), all.end(), [](const Finished& f) { return f.error_number != 0; });
  ASSERT_NE(failed, all.end());
  EXPECT_EQ(failed->error_number, EIO);
  EXPECT_EQ(failed->offset, failed->tag * kChunk);
  EXPECT_EQ(describe_failure(*failed, IoRequest::Operation::kRead),
            "read of 16384 bytes at offset " + std::to_string(failed->offset) + " failed: Input/output error");
}

TEST_P(QueueTest, a_file_that_ends_early_is_told_from_an_error) {
  testing::write_file(directory_ / "file", testing::random_bytes(kChunk + 100));
  std::vector<std::byte> out(2 * kChunk);
  int ended = 0;
  for (const Finished& finished : read_all({}, out)) {
    EXPECT_EQ(finished.error_number, 0);
    if (!finished.ended_early) continue;
    ++ended;
    EXPECT_EQ(finished.offset, kChunk + 100u);
    EXPECT_EQ(finished.missing, kChunk - 100u);
  }
  EXPECT_EQ(ended, 1);
}

TEST_P(QueueTest, an_aligned_read_that_keeps_ending_at_the_same_place_ends) {
  testing::write_file(directory_ / "file", testing::random_bytes(kChunk + 100));
  std::vector<std::byte> out(2 * kChunk);
  int ended = 0;
  for (const Finished& finished : read_all({}, out, 512)) ended += finished.ended_early;
  EXPECT_EQ(ended, 1);
}

TEST_P(QueueTest, a_kernel_that_never_stops_saying_try_again_is_given_up) {
  testing::write_file(directory_ / "file", testing::random_bytes(100));
  std::vector<std::byte> out(100);
  const auto all = read_all({.try_again = 1}, out);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].error_number, EAGAIN);
}

INSTANTIATE_TEST_SUITE_P(backends, QueueTest, ::testing::ValuesIn(testing::all_backends()),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace penstock
