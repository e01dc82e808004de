// Reads and writes over every backend, with faults: the bytes are right, or there is an error that says what is wrong.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <thread>

#include "base/bytes.h"
#include "io/new_file.h"
#include "penstock/error.h"
#include "testing/fault_engine.h"
#include "testing/files.h"
#include "testing/limits.h"
#include "transfer/session.h"
#include "transfer/write.h"

namespace penstock {
namespace {

using testing::Faults;
using testing::TempDir;

constexpr std::uint64_t kSize = 3 * kMiB + 777;

class TransferTest : public ::testing::TestWithParam<testing::NamedFactory> {
 protected:
  Settings settings(const Faults& faults = {}) const {
    return {testing::with_faults(GetParam().make, faults), 64 * kKiB, 8, 2};
  }

  static std::shared_ptr<Destination> host(const std::shared_ptr<Arena>& arena, ReadLanding landing) {
    const HostDestination::Memory memory{arena, arena->pages.get(), arena->reused};
    return std::make_shared<HostDestination>(memory, landing, std::make_shared<HugePageBudget>());
  }

  std::vector<std::byte> read(const Faults& faults, const ReadRoute& route, const PieceObserver& observe = {}) {
    const auto file = std::make_shared<const File>(File::open(directory_ / "file"));
    const auto arena = pool_->allocate(kSize);
    // Two segments with a hole, the second of them not congruent.
    const auto base = reinterpret_cast<std::uintptr_t>(arena->data());
    const std::vector<Segment> segments{{0, kMiB, base, 0}, {kMiB + 100, kSize - kMiB - 100, base + kMiB + 100, 1}};
    ReadSession session(settings(faults), pool_);
    const Stopwatch watch;
    const auto batch = session.start({{file, segments, route, host(arena, route.landing)}}, observe);
    ReadSession::wait(*batch, {}, kSize, watch);
    std::vector<std::byte> out(arena->data(), arena->data() + kSize);
    std::fill(out.begin() + kMiB, out.begin() + kMiB + 100, std::byte{0});
    return out;
  }

  std::vector<WritePart> parts_of(const std::vector<std::byte>& content) {
    // A produced part between two from memory.
    return {{0, 1000, {content.data(), {}}},
            {1000,
             kMiB,
             {nullptr,
              [&content](std::uint64_t offset, std::span<std::byte> bytes) {
                std::memcpy(bytes.data(), content.data() + 1000 + offset, bytes.size());
              }}},
            {1000 + kMiB, kSize - 1000 - kMiB, {content.data() + 1000 + kMiB, {}}}};
  }

  // A new file, to be written directly where it can be.
  static WriteTarget target_of(NewFile& file, bool direct, bool straight) {
    const auto alignment = direct ? file.use_direct() : std::nullopt;
    return {file.path(), file.fd(), alignment.has_value(), alignment.value_or(DirectAlignment{1, 1}), straight};
  }

  void write(const std::vector<std::byte>& content, const Faults& faults, bool direct, bool straight) {
    NewFile file = NewFile::create(directory_ / "file");
    const WriteTarget target = target_of(file, direct, straight);
    file.reserve(align_up(kSize, target.alignment.offset));
    const auto batch = plan_write(target, parts_of(content), 64 * kKiB);
    Crew crew(settings(faults), pool_);
    start_writing(crew, batch);
    const Stopwatch watch;
    wait_with_progress(*batch, {}, kSize, watch);
    file.finish(kSize, false);
    file.publish();
  }

  TempDir directory_;
  std::shared_ptr<HostPool> pool_ = host_pool(MemoryPool::create());
};

const Faults kRough{.short_transfer = 0.3, .interrupted = 0.1, .try_again = 0.05, .held_back = 0.3};

TEST_P(TransferTest, reads_land_right_however_rough_the_way) {
  auto content = testing::random_bytes(kSize);
  testing::write_file(directory_ / "file", content);
  std::fill(content.begin() + kMiB, content.begin() + kMiB + 100, std::byte{0});
  for (const ReadPath path :
       {ReadPath::kDirect, ReadPath::kCached, ReadPath::kByBlock, ReadPath::kBuffered, ReadPath::kDropBehind}) {
    for (const ReadLanding landing : {ReadLanding::kStaged, ReadLanding::kInPlace, ReadLanding::kByPage}) {
      EXPECT_TRUE(read({}, {path, landing}) == content);
      std::atomic<std::uint64_t> seen = 0;
      EXPECT_TRUE(read(kRough, {path, landing}, [&](const Piece& piece, const std::byte*) { seen += piece.nbytes; }) ==
                  content);
      EXPECT_EQ(seen, kSize - 100);
    }
  }
}

TEST_P(TransferTest, writes_arrive_right_however_rough_the_way) {
  const auto content = testing::random_bytes(kSize);
  for (const bool direct : {true, false}) {
    for (const bool straight : {true, false}) {
      write(content, {}, direct, straight);
      EXPECT_TRUE(testing::read_file(directory_ / "file") == content);
      write(content, kRough, direct, straight);
      EXPECT_TRUE(testing::read_file(directory_ / "file") == content);
    }
  }
}

TEST_P(TransferTest, a_failed_read_names_file_place_and_cause) {
  testing::write_file(directory_ / "file", testing::random_bytes(kSize));
  if (!File::open(directory_ / "file").direct().fd)
    GTEST_SKIP() << "the filesystem of " << directory_.path() << " refuses direct I/O";
  try {
    read({.fail_at = 5, .error_number = EIO}, {ReadPath::kDirect, ReadLanding::kStaged});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_EQ(error.error_number(), EIO);
    const std::string message = error.what();
    EXPECT_EQ(message.find((directory_ / "file").string() + ": read of 65536 bytes at offset "), 0u) << message;
    EXPECT_NE(message.find("failed: Input/output error"), std::string::npos) << message;
  }
}

TEST_P(TransferTest, a_full_disk_while_writing_leaves_the_old_file_and_nothing_else) {
  testing::write_file(directory_ / "file", "old");
  const auto content = testing::random_bytes(kSize);
  for (std::int64_t request = 0; request < 20; request += 6) {
    try {
      write(content, {.fail_at = request, .error_number = ENOSPC}, /*direct=*/true, /*straight=*/false);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kNoSpace);
      EXPECT_NE(std::string(error.what()).find("No space left on device"), std::string::npos);
    }
    EXPECT_EQ(testing::read_file(directory_ / "file").size(), 3u);
    EXPECT_EQ(directory_.names(), std::vector<std::string>{"file"});
  }
}

TEST_P(TransferTest, an_engine_that_breaks_down_is_an_error_and_not_a_hang) {
  testing::write_file(directory_ / "file", testing::random_bytes(kSize));
  if (!File::open(directory_ / "file").direct().fd) GTEST_SKIP() << "no direct I/O on " << directory_.path();
  try {
    read({.break_at = 4}, {ReadPath::kDirect, ReadLanding::kStaged});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_NE(std::string(error.what()).find("backend failed: Bad file descriptor"), std::string::npos);
  }
}

TEST_P(TransferTest, an_error_of_a_producer_reaches_the_caller) {
  NewFile file = NewFile::create(directory_ / "file");
  const WritePart part{
      0, kSize, {nullptr, [](std::uint64_t, std::span<std::byte>) { throw std::runtime_error("no more"); }}};
  const auto batch = plan_write(target_of(file, true, true), std::span(&part, 1), 64 * kKiB);
  Crew crew(settings(), pool_);
  start_writing(crew, batch);
  const Stopwatch watch;
  EXPECT_THROW(wait_with_progress(*batch, {}, kSize, watch), std::runtime_error);
}

TEST_P(TransferTest, a_progress_function_can_stop_it) {
  testing::write_file(directory_ / "file", testing::random_bytes(kSize));
  const auto file = std::make_shared<const File>(File::open(directory_ / "file"));
  const auto arena = pool_->allocate(kSize);
  const ReadRoute route{ReadPath::kDirect, ReadLanding::kStaged};
  const std::vector<Segment> all{{0, kSize, reinterpret_cast<std::uintptr_t>(arena->data())}};
  ReadSession session(settings({.delay_microseconds = 20'000}), pool_);
  const auto batch = session.start({{file, all, route, host(arena, route.landing)}});
  const Stopwatch watch;
  int calls = 0;
  try {
    ReadSession::wait(
        *batch, [&](const Progress&) { return ++calls < 2; }, kSize, watch);
    // A filesystem without direct I/O needs no engine, so nothing slows it down.
    EXPECT_FALSE(static_cast<bool>(file->direct().fd));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCancelled);
    EXPECT_EQ(calls, 2);
    EXPECT_LT(batch->bytes_done(), kSize);
  }
}

TEST_P(TransferTest, holes_between_parts_are_zero_however_rough_the_way) {
  auto content = testing::random_bytes(kSize);
  std::vector<WritePart> parts;
  std::fill(content.begin(), content.end() - 1, std::byte{0});
  for (const std::uint64_t offset : {std::uint64_t{5}, 200 * kKiB + 1, 2 * kMiB, kSize - 10}) {
    const std::uint64_t nbytes = offset == 2 * kMiB ? 300 * kKiB : 7;
    std::fill_n(content.begin() + static_cast<std::ptrdiff_t>(offset), nbytes, std::byte{0xAB});
    parts.push_back({offset, nbytes, {content.data() + offset, {}}});
  }
  content.back() = std::byte{0};
  add_zero_parts(parts, kSize);
  ASSERT_EQ(parts.size(), 9u);
  std::uint64_t covered = 0;
  for (const WritePart& part : parts) covered += part.nbytes;
  EXPECT_EQ(covered, kSize);
  for (const bool direct : {true, false}) {
    NewFile file = NewFile::create(directory_ / "file");
    const auto batch = plan_write(target_of(file, direct, /*straight=*/true), parts, 64 * kKiB);
    Crew crew(settings(kRough), pool_);
    start_writing(crew, batch);
    const Stopwatch watch;
    wait_with_progress(*batch, {}, kSize, watch);
    file.finish(kSize, false);
    file.publish();
    EXPECT_TRUE(testing::read_file(directory_ / "file") == content);
  }
}

TEST_P(TransferTest, a_crew_that_gets_no_thread_says_so) {
  const auto content = testing::random_bytes(kSize);
  NewFile file = NewFile::create(directory_ / "file");
  const auto batch = plan_write(target_of(file, false, true), parts_of(content), 64 * kKiB);
  const auto code = testing::run_without_threads([&] {
    Crew crew(settings(), pool_);
    try {
      start_writing(crew, batch);
    } catch (const Error& error) {
      const bool said = std::string(error.what()).find("cannot start a thread: ") == 0;
      return said && error.kind() == ErrorKind::kIo && error.error_number() == EAGAIN ? 0 : 1;
    }
    return 2;
  });
  if (!code) GTEST_SKIP() << "this process can't be kept from starting threads";
  EXPECT_EQ(*code, 0);
}

TEST_P(TransferTest, a_crew_that_gets_fewer_threads_than_it_wants_does_the_work_with_those) {
  if (GetParam().name == "threads") GTEST_SKIP() << "its engine needs threads too";
  const auto content = testing::random_bytes(kSize);
  NewFile file = NewFile::create(directory_ / "file");
  const auto batch = plan_write(target_of(file, false, true), parts_of(content), 64 * kKiB);
  const auto code = testing::run_with_threads(1, [&] {
    Crew crew(settings(), pool_);
    start_writing(crew, batch);
    const Stopwatch watch;
    wait_with_progress(*batch, {}, kSize, watch);
    return 0;
  });
  if (!code) GTEST_SKIP() << "this process's threads can't be counted";
  EXPECT_EQ(*code, 0);
  file.finish(kSize, false);
  file.publish();
  EXPECT_TRUE(testing::read_file(directory_ / "file") == content);
}

// A destination whose copies are made by another thread, some time later, as those of a device are.
class LateDestination final : public Destination {
 public:
  explicit LateDestination(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {
    copier_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  std::byte* for_drive(const Piece&) noexcept override { return nullptr; }
  std::byte* for_copy(const Piece&, bool) noexcept override { return nullptr; }

  CopyTicket put(std::span<const Piece> pieces, std::byte* bytes, std::uint64_t offset) override {
    const std::lock_guard lock(mutex_);
    queue_.push_back({{pieces.begin(), pieces.end()}, bytes, offset});
    changed_.notify_all();
    return ++last_;
  }

  bool is_done(CopyTicket ticket) noexcept override {
    const std::lock_guard lock(mutex_);
    return done_ >= ticket;
  }

  void wait(CopyTicket ticket) noexcept override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= ticket; });
  }

 private:
  struct Copy {
    std::vector<Piece> pieces;
    const std::byte* bytes;
    std::uint64_t offset;
  };

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return !queue_.empty(); })) return;
      const Copy copy = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      for (const Piece& piece : copy.pieces) {
        std::memcpy(reinterpret_cast<void*>(static_cast<std::uintptr_t>(piece.address)),
                    copy.bytes + (piece.offset - copy.offset), piece.nbytes);
      }
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  const std::shared_ptr<Arena> arena_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Copy> queue_;
  CopyTicket last_ = 0;
  CopyTicket done_ = 0;
  std::jthread copier_;
};

TEST_P(TransferTest, a_staging_block_is_not_used_again_before_its_copy_is_through) {
  const auto content = testing::random_bytes(kSize);
  testing::write_file(directory_ / "file", content);
  const auto file = std::make_shared<const File>(File::open(directory_ / "file"));
  for (const ReadPath path : {ReadPath::kDirect, ReadPath::kBuffered}) {
    const auto arena = pool_->allocate(kSize);
    const std::vector<Segment> all{{0, kSize, reinterpret_cast<std::uintptr_t>(arena->data())}};
    ReadSession session(settings(kRough), pool_);
    const Stopwatch watch;
    const auto batch =
        session.start({{file, all, {path, ReadLanding::kStaged}, std::make_shared<LateDestination>(arena)}});
    ReadSession::wait(*batch, {}, kSize, watch);
    EXPECT_EQ(batch->bytes_done(), kSize);
    EXPECT_TRUE(std::equal(content.begin(), content.end(), arena->data()));
  }
}

// Memory that the kernel can't write to for a drive, though the processor can: as some is that a device shares.
class UnreachableDestination final : public Destination {
 public:
  explicit UnreachableDestination(std::vector<std::byte>& memory)
      : memory_(memory), unreachable_(::mmap(nullptr, kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~UnreachableDestination() override { ::munmap(unreachable_, kSize); }

  std::byte* for_drive(const Piece& piece) noexcept override {
    return static_cast<std::byte*>(unreachable_) + piece.address;
  }
  std::byte* for_copy(const Piece&, bool) noexcept override { return nullptr; }
  CopyTicket put(std::span<const Piece> pieces, std::byte* bytes, std::uint64_t offset) override {
    for (const Piece& piece : pieces) {
      std::memcpy(memory_.data() + piece.address, bytes + (piece.offset - offset), piece.nbytes);
    }
    return kDone;
  }

 private:
  std::vector<std::byte>& memory_;
  void* const unreachable_;
};

TEST_P(TransferTest, what_the_kernel_cannot_read_into_passes_through_staging_blocks) {
  const auto content = testing::random_bytes(kSize);
  testing::write_file(directory_ / "file", content);
  const auto file = std::make_shared<const File>(File::open(directory_ / "file"));
  std::vector<std::byte> memory(kSize);
  ReadSession session(settings(), pool_);
  const Stopwatch watch;
  const auto batch = session.start({{file,
                                     {{0, kSize, 0}},
                                     {ReadPath::kDirect, ReadLanding::kInPlace},
                                     std::make_shared<UnreachableDestination>(memory)}});
  ReadSession::wait(*batch, {}, kSize, watch);
  EXPECT_TRUE(memory == content);
}

TEST_P(TransferTest, copies_under_way_are_waited_for_when_a_read_fails) {
  testing::write_file(directory_ / "file", testing::random_bytes(kSize));
  const auto file = std::make_shared<const File>(File::open(directory_ / "file"));
  if (!file->direct().fd) GTEST_SKIP() << "no direct I/O on " << directory_.path();
  const auto arena = pool_->allocate(kSize);
  const std::vector<Segment> all{{0, kSize, reinterpret_cast<std::uintptr_t>(arena->data())}};
  const auto destination = std::make_shared<LateDestination>(arena);
  ReadSession session(settings({.fail_at = 20, .error_number = EIO}), pool_);
  const auto batch = session.start({{file, all, {ReadPath::kDirect, ReadLanding::kStaged}, destination}});
  EXPECT_THROW(ReadSession::wait(*batch, {}, kSize, Stopwatch()), Error);
  Stats stats;
  session.finish(stats);
  EXPECT_LT(stats.bytes_direct, kSize);
}

INSTANTIATE_TEST_SUITE_P(backends, TransferTest, ::testing::ValuesIn(testing::all_backends()),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace penstock
