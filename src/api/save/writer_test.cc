// Saves: what is read back is what was given, the file appears whole, and refusals leave nothing behind.
#include "penstock/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <thread>

#include "base/bytes.h"
#include "memory/arena.h"
#include "penstock/convert.h"
#include "penstock/error.h"
#include "penstock/reader.h"
#include "testing/errors.h"
#include "testing/files.h"
#include "testing/limits.h"

namespace penstock {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::Field;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TempDir;

std::vector<std::byte> loaded(const std::filesystem::path& path, std::string_view name) {
  const Tensor tensor = Reader(path).load_slice(name, {});
  return {tensor.bytes.begin(), tensor.bytes.end()};
}

TEST(WriterTest, straight_staged_and_produced_tensors_arrive) {
  const TempDir directory;
  const auto bytes = testing::random_bytes(5 * kMiB + 12);
  for (const WriteMethod method : {WriteMethod::kAuto, WriteMethod::kDirect, WriteMethod::kBuffered}) {
    for (const bool checksums : {false, true}) {
      SaveOptions options;
      options.landing = checksums ? Landing::kStaged : Landing::kInPlace;
      options.method = method;
      options.checksums = checksums;
      options.shared = SharedTensors::kDuplicate;
      options.metadata = {{"format", "pt"}};
      Writer writer(directory / "a.safetensors", options);
      writer.add("straight", DType::kU8, {5 * kMiB}, bytes.data());
      writer.add("skewed", DType::kU8, {4 * kMiB}, bytes.data() + 5);
      writer.add("produced", DType::kI32, {kMiB}, [&](std::uint64_t offset, std::span<std::byte> out) {
        EXPECT_EQ(offset % 4, 0u);
        std::memcpy(out.data(), bytes.data() + offset, out.size());
      });
      const Stats stats = writer.commit();
      EXPECT_EQ(stats.bytes, 13 * kMiB);
      EXPECT_TRUE(
          std::equal(bytes.begin(), bytes.begin() + 5 * kMiB, loaded(directory / "a.safetensors", "straight").begin()));
      EXPECT_TRUE(std::equal(bytes.begin() + 5, bytes.begin() + 5 + 4 * kMiB,
                             loaded(directory / "a.safetensors", "skewed").begin()));
      EXPECT_TRUE(
          std::equal(bytes.begin(), bytes.begin() + 4 * kMiB, loaded(directory / "a.safetensors", "produced").begin()));
      EXPECT_EQ(Reader(directory / "a.safetensors").metadata().at("format"), "pt");
      const VerifyReport report = verify(directory / "a.safetensors");
      EXPECT_TRUE(report.ok);
      EXPECT_EQ(report.had_checksums, checksums);
    }
  }
  EXPECT_THAT(directory.names(), ElementsAre("a.safetensors"));
}

TEST(WriterTest, the_same_tensors_give_the_same_bytes_wherever_they_lie) {
  const TempDir directory;
  const auto bytes = testing::random_bytes(3 * kMiB);
  for (const char* name : {"m.safetensors", "m.flashpack", "m.pt"}) {
    for (const Landing landing : {Landing::kAuto, Landing::kInPlace, Landing::kStaged}) {
      std::vector<std::byte> first;
      for (const std::size_t shift : {0, 64, 512, 4096 + 8}) {
        std::vector<std::byte> memory(bytes.size() + 8192);
        std::byte* const data = memory.data() + shift;
        std::copy(bytes.begin(), bytes.end(), data);
        SaveOptions options;
        options.landing = landing;
        Writer writer(directory / name, options);
        writer.add("large", DType::kU8, {2 * kMiB}, data);
        writer.add("small", DType::kF32, {kMiB / 4}, data + 2 * kMiB);
        writer.commit();
        const auto content = testing::read_file(directory / name);
        if (first.empty()) first = content;
        EXPECT_TRUE(content == first) << name << " from memory at " << shift;
      }
    }
  }
}

TEST(WriterTest, a_transposed_tensor_is_written_in_row_major_order) {
  const TempDir directory;
  std::vector<std::int32_t> values(300 * 200);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(i);
  Writer writer(directory / "t.safetensors");
  const std::int64_t strides[] = {4, 800};
  writer.add("t", DType::kI32, {200, 300}, values.data(), strides);
  writer.commit();
  const Tensor tensor = Reader(directory / "t.safetensors").load_slice("t", {});
  for (int i = 0; i < 200; ++i) {
    for (int j = 0; j < 300; ++j) ASSERT_EQ(tensor.data<std::int32_t>()[i * 300 + j], j * 200 + i);
  }
}

TEST(WriterTest, tensors_that_share_memory_are_refused_or_stored_once) {
  const TempDir directory;
  const auto bytes = testing::random_bytes(1000);
  const auto fill = [&](SaveOptions options, std::size_t second_offset) {
    Writer writer(directory / "s.safetensors", std::move(options));
    writer.add("b", DType::kU8, {100}, bytes.data());
    writer.add("a", DType::kU8, {100}, bytes.data() + second_offset);
    writer.add("c", DType::kU8, {100}, bytes.data() + 500);
    return writer.commit();
  };
  EXPECT_THAT(message_of([&] { fill({}, 0); }),
              EndsWith("tensors \"a\" and \"b\" share memory; shared=\"deduplicate\" stores them once, "
                       "shared=\"duplicate\" writes each in full"));
  EXPECT_THAT(message_of([&] { fill({.shared = SharedTensors::kDeduplicate}, 50); }),
              EndsWith("partly share memory; shared=\"duplicate\" writes each in full"));
  EXPECT_TRUE(directory.names().empty());

  EXPECT_EQ(fill({.shared = SharedTensors::kDeduplicate}, 0).tensors, 2u);
  const Reader once(directory / "s.safetensors");
  EXPECT_EQ(once.tensors().size(), 2u);
  EXPECT_EQ(once.metadata().at("b"), "a");
  fill({.shared = SharedTensors::kDuplicate}, 50);
  EXPECT_EQ(Reader(directory / "s.safetensors").tensors().size(), 3u);
}

TEST(WriterTest, strided_tensors_that_are_the_same_are_found_too) {
  const TempDir directory;
  const auto bytes = testing::random_bytes(10'000);
  const std::int64_t strides[] = {1, 100};
  const auto fill = [&](SharedTensors shared) {
    SaveOptions options;
    options.shared = shared;
    Writer writer(directory / "s.safetensors", options);
    for (const char* name : {"a", "b"}) writer.add(name, DType::kU8, {100, 50}, bytes.data(), strides);
    return writer.commit();
  };
  EXPECT_THAT(message_of([&] { fill(SharedTensors::kRefuse); }), HasSubstr("tensors \"a\" and \"b\" share memory"));
  EXPECT_EQ(fill(SharedTensors::kDeduplicate).tensors, 1u);
  EXPECT_EQ(fill(SharedTensors::kDuplicate).tensors, 2u);
}

TEST(WriterTest, bad_arguments_are_refused_before_anything_is_written) {
  const TempDir directory;
  const std::byte byte{};
  EXPECT_THAT(message_of([&] { Writer(directory / "x.unknown"); }), HasSubstr("x.unknown"));
  Writer writer(directory / "x.safetensors");
  EXPECT_THAT(message_of([&] { writer.add("n", DType::kF32, {-1}, &byte); }), HasSubstr("\"n\""));
  EXPECT_THAT(message_of([&] {
                writer.add("n", DType::kF32, {1 << 30, 1 << 30, 1 << 30}, &byte);
              }),
              HasSubstr("\"n\""));
  EXPECT_THAT(message_of([&] { writer.add("n", DType::kF4, {3}, &byte); }), HasSubstr("\"n\""));
  EXPECT_THAT(message_of([&] { writer.add("n", DType::kU8, {1}, static_cast<const void*>(nullptr)); }),
              HasSubstr("no data"));
  writer.add("n", DType::kU8, {0}, static_cast<const void*>(nullptr));
  writer.add("n", DType::kU8, {0}, static_cast<const void*>(nullptr));
  EXPECT_THAT(message_of([&] { writer.commit(); }), HasSubstr("\"n\""));
  EXPECT_THAT(message_of([&] { writer.commit(); }), HasSubstr("committed before"));
  EXPECT_TRUE(directory.names().empty());
}

TEST(WriterTest, a_file_of_no_tensors_is_a_file) {
  const TempDir directory;
  Writer(directory / "none.safetensors").commit();
  EXPECT_TRUE(Reader(directory / "none.safetensors").tensors().empty());
  EXPECT_TRUE(Reader(directory / "none.safetensors").load().tensors.empty());
}

TEST(WriterTest, a_save_that_meets_a_limit_leaves_the_old_file) {
  const TempDir directory;
  testing::write_file(directory / "m.safetensors", "old");
  const auto bytes = testing::random_bytes(3 * kMiB);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{kMiB, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  Writer writer(directory / "m.safetensors");
  writer.add("x", DType::kU8, {3 * kMiB}, bytes.data());
  const std::string message = message_of([&] { writer.commit(); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, HasSubstr("File too large"));
  EXPECT_EQ(testing::read_file(directory / "m.safetensors").size(), 3u);
  EXPECT_THAT(directory.names(), ElementsAre("m.safetensors"));
}

TEST(WriterTest, a_killed_save_leaves_the_old_file_and_no_temporary) {
  const TempDir directory;
  testing::write_file(directory / "m.safetensors", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    SaveOptions options;
    Writer writer(directory / "m.safetensors", options);
    writer.add("x", DType::kU8, {64 * kMiB}, [](std::uint64_t offset, std::span<std::byte>) {
      if (offset > 16 * kMiB) ::kill(::getpid(), SIGKILL);
    });
    writer.commit();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(testing::read_file(directory / "m.safetensors").size(), 3u);
  if (directory.names().size() > 1) GTEST_SKIP() << "the filesystem of " << directory.path() << " has no unnamed files";
  EXPECT_THAT(directory.names(), ElementsAre("m.safetensors"));
}

TEST(WriterTest, a_cancelled_save_leaves_the_old_file) {
  const TempDir directory;
  testing::write_file(directory / "m.safetensors", "old");
  const auto bytes = testing::random_bytes(8 * kMiB);
  SaveOptions options;
  options.progress = [](const Progress&) { return false; };
  Writer writer(directory / "m.safetensors", options);
  writer.add("x", DType::kU8, {8 * kMiB}, bytes.data());
  EXPECT_EQ(message_of([&] { writer.commit(); }), "cancelled");
  EXPECT_EQ(testing::read_file(directory / "m.safetensors").size(), 3u);
  EXPECT_THAT(directory.names(), ElementsAre("m.safetensors"));
}

TEST(WriterTest, shards_and_their_index_are_written) {
  const TempDir directory;
  const auto bytes = testing::random_bytes(10'000);
  SaveOptions options;
  options.max_shard_size = 2500;
  options.shared = SharedTensors::kDuplicate;
  options.checksums = true;
  Writer writer(directory / "model.safetensors", options);
  for (int i = 0; i < 5; ++i) writer.add("t" + std::to_string(i), DType::kU8, {1000}, bytes.data() + 1000 * i);
  writer.commit();
  EXPECT_THAT(directory.names(), ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                             "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
  EXPECT_TRUE(verify(directory.path()).ok);
  EXPECT_EQ(verify(directory.path()).tensors.size(), 5u);
}

TEST(WriterTest, a_sharded_save_that_fails_at_its_index_leaves_no_shard) {
  const TempDir directory;
  std::filesystem::create_directory(directory / "model.safetensors.index.json");
  const auto bytes = testing::random_bytes(5000);
  SaveOptions options;
  options.max_shard_size = 2500;
  Writer writer(directory / "model.safetensors", options);
  for (int i = 0; i < 5; ++i) writer.add("t" + std::to_string(i), DType::kU8, {1000}, bytes.data() + 1000 * i);
  EXPECT_THAT(message_of([&] { writer.commit(); }), HasSubstr("Is a directory"));
  EXPECT_THAT(directory.names(), ElementsAre("model.safetensors.index.json"));
}

TEST(WriterTest, a_single_file_takes_the_place_of_a_sharded_one_of_its_name) {
  const TempDir directory;
  const auto bytes = testing::random_bytes(2000);
  for (const std::uint64_t max_shard_size : {1000, 0}) {
    SaveOptions options;
    options.max_shard_size = max_shard_size;
    Writer writer(directory / "model.safetensors", options);
    writer.add("a", DType::kU8, {1000}, bytes.data() + (max_shard_size == 0 ? 500 : 0));
    if (max_shard_size > 0) writer.add("b", DType::kU8, {1000}, bytes.data() + 1000);
    writer.commit();
  }
  EXPECT_EQ(Reader(directory / "model.safetensors").tensors().size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(directory / "model.safetensors.index.json"));
}

TEST(WriterTest, the_parts_of_a_split_tensor_are_written) {
  const TempDir directory;
  std::vector<std::int32_t> values(100 * 6);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(i);
  Writer writer(directory / "s.safetensors");
  const std::int64_t strides[] = {24, 4};
  for (int part = 0; part < 3; ++part)
    writer.add("p" + std::to_string(part), DType::kI32, {100, 2}, values.data() + 2 * part, strides);
  writer.commit();
  EXPECT_EQ(Reader(directory / "s.safetensors").load_slice("p1", {}).data<std::int32_t>()[2], 8);
}

TEST(WriterTest, a_save_that_is_stopped_while_it_syncs_leaves_the_old_file) {
  const TempDir directory;
  testing::write_file(directory / "m.safetensors", "old");
  SaveOptions options;
  options.method = WriteMethod::kBuffered;
  // All is written when the total is told a second time: what is left then is the sync.
  int calls_at_the_end = 0;
  options.progress = [&](const Progress& now) { return now.bytes_done < now.bytes_total || ++calls_at_the_end < 2; };
  Writer writer(directory / "m.safetensors", options);
  writer.add("x", DType::kU8, {128 * kMiB}, [](std::uint64_t offset, std::span<std::byte> bytes) {
    std::memset(bytes.data(), static_cast<int>(offset >> 20), bytes.size());
  });
  bool stopped = false;
  try {
    writer.commit();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCancelled);
    stopped = true;
  }
  // A drive that is quicker than we ask leaves nothing to stop.
  EXPECT_EQ(stopped, calls_at_the_end >= 2);
  EXPECT_EQ(testing::read_file(directory / "m.safetensors").size() == 3, stopped);
  EXPECT_THAT(directory.names(), ElementsAre("m.safetensors"));
}

TEST(WriterTest, a_small_file_is_saved_without_a_thread_and_a_large_one_says_why_not) {
  const TempDir directory;
  ASSERT_EQ(::chmod(directory.path().c_str(), 0777), 0);
  const auto bytes = testing::random_bytes(8 * kMiB);
  const auto save = [&](std::int64_t nbytes, bool in_background) -> std::string {
    try {
      Writer writer(directory / "m.flashpack");
      writer.add("x", DType::kU8, {nbytes}, bytes.data());
      if (in_background) {
        save_async(std::move(writer)).wait();
      } else {
        writer.commit();
      }
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto code = testing::run_without_threads([&] {
    const std::string expected = "cannot start a thread: ";
    if (!save(8 * kMiB, false).starts_with(expected)) return 1;
    if (!save(1000, true).starts_with(expected)) return 2;
    if (!directory.names().empty()) return 3;
    return save(1000, false).empty() ? 0 : 4;
  });
  if (!code) GTEST_SKIP() << "this process can't be kept from starting threads";
  EXPECT_EQ(*code, 0);
  EXPECT_EQ(loaded(directory / "m.flashpack", "x").size(), 1000u);
}

TEST(SaveAsyncTest, memory_may_change_once_it_is_staged) {
  const TempDir directory;
  for (const bool snapshot : {true, false}) {
    auto bytes = testing::random_bytes(20 * kMiB);
    const auto expected = bytes;
    Writer writer(directory / "a.safetensors");
    writer.add("x", DType::kU8, {20 * kMiB}, bytes.data());
    SaveJob job = save_async(std::move(writer), {.snapshot = snapshot});
    job.staged();
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    EXPECT_EQ(job.wait().bytes, 20 * kMiB);
    EXPECT_TRUE(job.done());
    EXPECT_EQ(job.progress().bytes_done, job.progress().bytes_total);
    EXPECT_TRUE(loaded(directory / "a.safetensors", "x") == expected);
  }
}

struct SnapshotCase {
  const char* name;
  const char* format;
  bool checksums = false;
  std::uint64_t max_shard_size = 0;
};

void PrintTo(const SnapshotCase& snapshot, std::ostream* out) {
  *out << snapshot.name;
}

class SnapshotTest : public ::testing::TestWithParam<SnapshotCase> {};

TEST_P(SnapshotTest, goes_straight_to_the_drive_whatever_the_sizes) {
  const TempDir directory;
  const std::filesystem::path path = directory / GetParam().name;
  const std::vector<std::size_t> sizes = {3 * kMiB + 13, 5, 0, 1 * kMiB + 1, 2 * kMiB, 700 * kKiB + 3};
  for (const Landing landing : {Landing::kAuto, Landing::kInPlace, Landing::kStaged}) {
    SaveOptions options;
    options.format = GetParam().format;
    options.checksums = GetParam().checksums;
    options.max_shard_size = GetParam().max_shard_size;
    options.shared = SharedTensors::kDuplicate;
    options.landing = landing;
    Writer writer(path, options);
    std::vector<std::vector<std::byte>> tensors;
    for (const std::size_t size : sizes) {
      tensors.push_back(testing::random_bytes(size, static_cast<std::uint32_t>(size)));
      writer.add("t" + std::to_string(size), DType::kU8, {static_cast<std::int64_t>(size)}, tensors.back().data());
    }
    // Produced, and every other element of a matrix.
    writer.add("produced", DType::kU8, {1 << 20}, [&](std::uint64_t offset, std::span<std::byte> bytes) {
      std::copy_n(tensors[0].begin() + static_cast<std::ptrdiff_t>(offset), bytes.size(), bytes.begin());
    });
    const std::int64_t strides[] = {2};
    writer.add("strided", DType::kU8, {1 << 19}, tensors[0].data(), strides);
    const Stats stats = save_async(std::move(writer)).wait();

    const auto file = options.max_shard_size > 0 ? directory.path() : path;
    for (const auto& tensor : tensors) EXPECT_TRUE(loaded(file, "t" + std::to_string(tensor.size())) == tensor);
    const auto produced = loaded(file, "produced");
    EXPECT_TRUE(std::equal(produced.begin(), produced.end(), tensors[0].begin()));
    const auto strided = loaded(file, "strided");
    for (std::size_t i = 0; i < strided.size(); ++i) ASSERT_EQ(strided[i], tensors[0][2 * i]);
    EXPECT_TRUE(verify(file).ok);
    EXPECT_THAT(stats.phases, Contains(Field(&Phase::name, "snapshot")));
    if (stats.path != "direct") continue;
    EXPECT_EQ(stats.landing, landing == Landing::kStaged ? "staged" : "straight");
  }
}

// Whatever the memory held that it is put together in.
TEST_P(SnapshotTest, makes_the_file_that_a_save_makes) {
  const TempDir directory;
  const auto tensors = testing::random_bytes(9 * kMiB + 17);
  SaveOptions options;
  options.format = GetParam().format;
  options.checksums = GetParam().checksums;
  options.max_shard_size = GetParam().max_shard_size;
  options.shared = SharedTensors::kDuplicate;
  options.landing = Landing::kStaged;
  const auto writer_to = [&](const char* folder) {
    std::filesystem::create_directories(directory / folder);
    Writer writer(directory / folder / GetParam().name, options);
    std::int64_t begin = 0;
    for (const std::uint64_t size : {3 * kMiB, std::uint64_t{5}, 1 * kMiB + 1, std::uint64_t{0}, 5 * kMiB}) {
      writer.add("t" + std::to_string(begin), DType::kU8, {static_cast<std::int64_t>(size)}, tensors.data() + begin);
      begin += static_cast<std::int64_t>(size) + 1;
    }
    return writer;
  };
  writer_to("saved").commit();
  const auto pool = host_pool(MemoryPool::create());
  save_async(writer_to("snapshot"), {.pool = pool}).wait();
  auto dirty = pool->allocate(pool->kept_bytes());
  ASSERT_TRUE(dirty->reused);
  std::memset(dirty->data(), 0xFF, dirty->size());
  dirty.reset();
  std::filesystem::remove_all(directory / "snapshot");  // shards over a set have other names
  save_async(writer_to("snapshot"), {.pool = pool}).wait();
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory / "saved")) {
    ++files;
    EXPECT_TRUE(testing::read_file(entry.path()) ==
                testing::read_file(directory / "snapshot" / entry.path().filename()))
        << entry.path();
  }
  EXPECT_EQ(files > 1, options.max_shard_size > 0);
}

INSTANTIATE_TEST_SUITE_P(Formats, SnapshotTest,
                         ::testing::Values(SnapshotCase{"a.safetensors", "safetensors"},
                                           SnapshotCase{"b.safetensors", "safetensors", true},
                                           SnapshotCase{"c.safetensors", "safetensors", false, 4 * kMiB},
                                           SnapshotCase{"d.safetensors", "safetensors", true, 4 * kMiB},
                                           SnapshotCase{"a.flashpack", "flashpack"},
                                           SnapshotCase{"b.flashpack", "flashpack", true},
                                           SnapshotCase{"a.pt", "torch"}, SnapshotCase{"b.pt", "torch-legacy"}));

TEST(SaveAsyncTest, an_error_surfaces_at_every_wait) {
  const TempDir directory;
  Writer writer(directory / "nowhere" / "a.safetensors");
  SaveJob job = save_async(std::move(writer));
  EXPECT_THAT(message_of([&] { job.wait(); }), HasSubstr("nowhere"));
  EXPECT_THAT(message_of([&] { job.wait(); }), HasSubstr("nowhere"));
}

TEST(SaveAsyncTest, a_cancelled_job_leaves_nothing) {
  const TempDir directory;
  std::atomic<bool> go{false};
  Writer writer(directory / "a.safetensors");
  writer.add("x", DType::kU8, {64 * kMiB}, [&](std::uint64_t, std::span<std::byte>) {
    while (!go) std::this_thread::yield();
  });
  SaveJob job = save_async(std::move(writer), {.snapshot = false});
  job.cancel();
  go = true;
  EXPECT_EQ(message_of([&] { job.wait(); }), "cancelled");
  EXPECT_TRUE(directory.names().empty());
}

TEST(SaveAsyncTest, an_unfinished_job_is_finished_by_its_destructor) {
  const TempDir directory;
  const auto bytes = testing::random_bytes(kMiB);
  {
    Writer writer(directory / "a.safetensors");
    writer.add("x", DType::kU8, {kMiB}, bytes.data());
    const SaveJob job = save_async(std::move(writer));
  }
  EXPECT_TRUE(loaded(directory / "a.safetensors", "x") == bytes);
}

}  // namespace
}  // namespace penstock
