// Reads and writes of plain files: over every backend, with faults, the bytes are right or wait() says what is wrong.
#include "penstock/aio.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "api/aio/aio_state.h"
#include "base/bytes.h"
#include "base/unique_fd.h"
#include "penstock/error.h"
#include "testing/errors.h"
#include "testing/fault_engine.h"
#include "testing/files.h"

namespace penstock {
namespace {

using testing::Faults;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TempDir;

constexpr std::uint64_t kBlock = 64 * kKiB;
const Faults kRough{
    .short_transfer = 0.3, .interrupted = 0.1, .try_again = 0.05, .held_back = 0.3, .delay_microseconds = 20};

// Aligned memory with `skew` bytes in front.
struct Buffer {
  explicit Buffer(std::size_t count, std::size_t skew = 0)
      : memory(allocate_locked(count + skew)), data(memory.data + skew), nbytes(count) {}
  Buffer(std::span<const std::byte> bytes, std::size_t skew = 0) : Buffer(bytes.size(), skew) {
    std::copy(bytes.begin(), bytes.end(), data);
  }

  AioMemory use() const { return {data, nbytes, memory.owner}; }
  std::vector<std::byte> content() const { return {data, data + nbytes}; }

  LockedMemory memory;
  std::byte* data;
  std::size_t nbytes;
};

class AioTest : public ::testing::TestWithParam<testing::NamedFactory> {
 protected:
  AioHandle make(const Faults& faults = {}, unsigned threads = 2) const {
    AioOptions options;
    options.block_size = kBlock;
    options.queue_depth = 4;
    options.intra_op_parallelism = threads;
    return AioHandle(std::make_unique<AioHandle::State>(options, testing::with_faults(GetParam().make, faults)));
  }

  TempDir directory_;
  std::filesystem::path path_ = directory_ / "file";
};

TEST_P(AioTest, every_size_and_skew_arrives_however_rough_the_way) {
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4095}, std::uint64_t{4096},
                                   kBlock - 1, kBlock, kBlock + 1, 7 * kBlock + 512, 20 * kBlock + 13}) {
    const auto bytes = testing::random_bytes(size + 5000, static_cast<std::uint32_t>(size));
    const auto middle = std::span(bytes).subspan(0, size);
    for (const std::size_t skew : {0u, 1u, 64u, 512u}) {
      for (const std::uint64_t offset : {0u, 100u, 4096u}) {
        const Buffer source(middle, skew);
        std::filesystem::remove(path_);
        AioHandle handle = make(kRough);
        handle.write(source.use(), {.path = path_, .offset = offset});
        auto expected = std::vector<std::byte>(offset);
        if (size > 0) expected.insert(expected.end(), middle.begin(), middle.end());
        if (size == 0) expected.clear();
        ASSERT_TRUE(testing::read_file(path_) == expected) << size << " bytes at " << offset << ", skew " << skew;
        if (size == 0) continue;
        const Buffer target(size, skew);
        handle.start_read(target.use(), {.path = path_, .offset = offset});
        EXPECT_EQ(handle.wait(), 1u);
        ASSERT_TRUE(std::equal(middle.begin(), middle.end(), target.data)) << size << " at " << offset;
      }
    }
  }
}

TEST_P(AioTest, a_write_without_an_offset_cuts_a_longer_file_and_one_with_an_offset_does_not) {
  const auto old = testing::random_bytes(10 * kBlock);
  const auto bytes = testing::random_bytes(3 * kBlock + 7, 2);
  const Buffer source(bytes);
  AioHandle handle = make();
  testing::write_file(path_, old);
  handle.write(source.use(), {.path = path_});
  EXPECT_TRUE(testing::read_file(path_) == bytes);

  testing::write_file(path_, old);
  handle.write(source.use(), {.path = path_, .offset = 0});
  auto mixed = old;
  std::copy(bytes.begin(), bytes.end(), mixed.begin());
  EXPECT_TRUE(testing::read_file(path_) == mixed);

  handle.write(source.use(), {.path = path_, .offset = 2 * kBlock});
  std::copy(bytes.begin(), bytes.end(), mixed.begin() + 2 * kBlock);
  EXPECT_TRUE(testing::read_file(path_) == mixed);
}

TEST_P(AioTest, neighbours_that_are_written_together_leave_each_other_alone) {
  // Chunks that end in the middle of a page, so that direct and buffered writes meet there.
  const auto bytes = testing::random_bytes(40 * 30'001);
  for (int round = 0; round < 3; ++round) {
    AioHandle handle = make(kRough, 4);
    std::vector<Buffer> chunks;
    for (std::size_t i = 0; i < 40; ++i) chunks.emplace_back(std::span(bytes).subspan(i * 30'001, 30'001));
    for (std::size_t i = 0; i < 40; ++i) {
      handle.start_write(chunks[i].use(), {.path = path_, .offset = i * 30'001});
    }
    EXPECT_EQ(handle.pending(), 40u);
    EXPECT_EQ(handle.wait(), 40u);
    EXPECT_TRUE(testing::read_file(path_) == bytes);
    std::filesystem::remove(path_);
  }
}

TEST_P(AioTest, wait_counts_the_operations_and_names_the_first_that_failed) {
  const auto bytes = testing::random_bytes(4 * kBlock);
  const Buffer source(bytes);
  AioHandle handle = make({.fail_at = 2, .error_number = EIO}, 1);
  for (const char* name : {"a", "b", "c"}) handle.start_write(source.use(), {.path = directory_ / name});
  const std::string message = message_of([&] { handle.wait(); });
  EXPECT_THAT(message, HasSubstr((directory_ / "a").string() + ": write of 65536 bytes at offset 131072 failed"));
  EXPECT_THAT(message, HasSubstr("Input/output error"));
  EXPECT_TRUE(testing::read_file(directory_ / "c") == bytes);
  EXPECT_EQ(handle.pending(), 0u);
  EXPECT_EQ(handle.wait(), 0u);
}

TEST_P(AioTest, several_failures_are_counted) {
  const Buffer source(testing::random_bytes(kBlock));
  AioHandle handle = make({.break_at = 0}, 1);
  handle.start_write(source.use(), {.path = directory_ / "a"});
  handle.start_write(source.use(), {.path = directory_ / "b"});
  EXPECT_THAT(message_of([&] { handle.wait(); }), HasSubstr("(and 1 more of the operations failed)"));
}

TEST_P(AioTest, a_full_disk_is_an_error_of_its_kind) {
  const Buffer source(testing::random_bytes(4 * kBlock));
  AioHandle handle = make({.fail_at = 1, .error_number = ENOSPC});
  try {
    handle.write(source.use(), {.path = path_});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNoSpace);
    EXPECT_EQ(error.error_number(), ENOSPC);
    EXPECT_THAT(error.what(), HasSubstr(path_.string()));
  }
}

TEST_P(AioTest, a_synchronous_call_leaves_the_others_pending) {
  const Buffer source(testing::random_bytes(4 * kBlock));
  const Buffer target(4 * kBlock);
  AioHandle handle = make();
  handle.start_write(source.use(), {.path = directory_ / "a"});
  handle.write(source.use(), {.path = directory_ / "b"});
  handle.read(target.use(), {.path = directory_ / "b"});
  EXPECT_TRUE(target.content() == source.content());
  EXPECT_EQ(handle.pending(), 1u);
  while (!handle.wait_for(0.01)) {
  }
  EXPECT_EQ(handle.wait(), 1u);
}

TEST_P(AioTest, the_memory_is_held_until_it_is_waited_for) {
  AioHandle handle = make({.delay_microseconds = 1000});
  const auto bytes = testing::random_bytes(10 * kBlock);
  std::weak_ptr<const void> watched;
  {
    const Buffer source(bytes);
    watched = source.memory.owner;
    handle.start_write(source.use(), {.path = path_});
  }
  EXPECT_FALSE(watched.expired());
  handle.wait();
  EXPECT_TRUE(testing::read_file(path_) == bytes);
}

TEST_P(AioTest, a_handle_that_goes_finishes_its_work) {
  const auto bytes = testing::random_bytes(10 * kBlock + 5);
  const Buffer source(bytes);
  {
    AioHandle handle = make({.delay_microseconds = 500});
    handle.start_write(source.use(), {.path = path_});
  }
  EXPECT_TRUE(testing::read_file(path_) == bytes);
}

TEST_P(AioTest, threads_may_share_it) {
  AioHandle handle = make(kRough);
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto bytes = testing::random_bytes(5 * kBlock + t, t + 1);
      const Buffer source(bytes);
      const Buffer target(bytes.size());
      const auto path = directory_ / std::to_string(t);
      handle.write(source.use(), {.path = path});
      handle.start_read(target.use(), {.path = path});
      handle.wait();
      // Another thread may have waited for it.
      handle.read(target.use(), {.path = path});
      EXPECT_TRUE(target.content() == bytes);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(backends, AioTest, ::testing::ValuesIn(testing::all_backends()),
                         [](const auto& param_info) { return param_info.param.name; });

TEST(AioHandleTest, a_descriptor_stands_for_its_file_however_it_was_opened) {
  const TempDir directory;
  const auto old = testing::random_bytes(5 * kBlock);
  testing::write_file(directory / "file", old);
  const auto bytes = testing::random_bytes(kBlock + 3, 2);
  const Buffer source(bytes);
  AioHandle handle;
  for (const int flags : {O_WRONLY, O_RDWR, O_WRONLY | O_DIRECT}) {
    const UniqueFd fd(::open((directory / "file").c_str(), flags));
    if (!fd) continue;  // a filesystem without direct I/O
    handle.write(source.use(), {.path = {}, .offset = {}, .fd = fd.get()});
    auto expected = old;
    std::copy(bytes.begin(), bytes.end(), expected.begin());
    EXPECT_TRUE(testing::read_file(directory / "file") == expected);
    EXPECT_EQ(::fcntl(fd.get(), F_GETFD), 0) << "it was closed";
  }
  EXPECT_THAT(message_of([&] { handle.write(source.use(), {.path = {}, .offset = {}, .fd = 999}); }),
              HasSubstr("descriptor 999: cannot open for writing: No such file or directory"));
}

TEST(AioHandleTest, validation_finds_a_byte_that_differs) {
  const TempDir directory;
  const auto bytes = testing::random_bytes(3 * kMiB + 3);
  const Buffer buffer(bytes);
  AioHandle handle;
  handle.write(buffer.use(), {.path = directory / "file", .validate = true});
  handle.start_read(buffer.use(), {.path = directory / "file", .validate = true});
  EXPECT_EQ(handle.wait(), 1u);
  handle.start_write(buffer.use(), {.path = directory / "file", .validate = true});
  while (!handle.wait_for(1)) {
  }
  buffer.data[2 * kMiB + 7] ^= std::byte{1};
  EXPECT_EQ(message_of([&] { handle.wait(); }),
            (directory / "file").string() + ": the byte at offset 2097159 is not the one in memory");
}

TEST(AioHandleTest, refuses_what_makes_no_sense) {
  const TempDir directory;
  testing::write_file(directory / "file", "abc");
  const Buffer buffer(10);
  AioHandle handle;
  const auto read = [&](const AioPlace& place) { return message_of([&] { handle.start_read(buffer.use(), place); }); };
  const std::string path = (directory / "file").string();
  EXPECT_EQ(read({.path = path}), path + ": 10 bytes at offset 0 reach past its end, it has 3 bytes");
  EXPECT_EQ(read({.path = path, .offset = ~std::uint64_t{0}}),
            path + ": no file has 10 bytes at offset 18446744073709551615");
  EXPECT_THAT(read({.path = directory / "missing"}), HasSubstr("cannot open: No such file or directory"));
  EXPECT_THAT(read({.path = directory.path()}), HasSubstr("Is a directory"));
  EXPECT_THAT(message_of([&] { handle.write({nullptr, 5, {}}, {.path = path}); }), HasSubstr("has no memory"));
  EXPECT_EQ(handle.pending(), 0u);
  EXPECT_EQ(message_of([] { AioHandle({.block_size = 0}); }), "block size 0: expected 1 to 1073741824");
  EXPECT_EQ(message_of([] { AioHandle({.queue_depth = 0}); }), "queue depth 0: expected at least 1");
  EXPECT_EQ(message_of([] { AioHandle({.intra_op_parallelism = 0}); }), "parallelism 0: expected 1 to 256 threads");
}

TEST(AioHandleTest, says_what_it_was_made_with) {
  const AioHandle handle(
      {.block_size = 12345, .queue_depth = 100'000, .single_submit = true, .intra_op_parallelism = 3});
  EXPECT_EQ(handle.options().block_size, 12345u);
  EXPECT_EQ(handle.options().queue_depth, 100'000u);
  EXPECT_TRUE(handle.options().single_submit);
  EXPECT_FALSE(handle.options().overlap_events);
  EXPECT_EQ(handle.alignment(), 1536u);
}

TEST(AioHandleTest, an_odd_block_size_works) {
  const TempDir directory;
  const auto bytes = testing::random_bytes(100'000);
  const Buffer source(bytes);
  for (const std::size_t block_size : {1000u, 4097u, 99'999u}) {
    AioHandle handle({.block_size = block_size, .intra_op_parallelism = 2});
    handle.write(source.use(), {.path = directory / "file"});
    EXPECT_TRUE(testing::read_file(directory / "file") == bytes);
    const Buffer target(bytes.size(), 3);
    handle.read(target.use(), {.path = directory / "file"});
    EXPECT_TRUE(target.content() == bytes);
  }
}

TEST(LockedMemoryTest, is_aligned_zeroed_and_writable) {
  for (const std::size_t nbytes : {std::size_t{0}, std::size_t{1}, std::size_t{5} << 20}) {
    const LockedMemory memory = allocate_locked(nbytes);
    EXPECT_EQ(memory.nbytes, nbytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data) % 4096, 0u);
    EXPECT_TRUE(std::all_of(memory.data, memory.data + nbytes, [](std::byte byte) { return byte == std::byte{0}; }));
    std::memset(memory.data, 1, nbytes);
  }
}

}  // namespace
}  // namespace penstock
