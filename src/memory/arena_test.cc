#include "memory/arena.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include "base/bytes.h"
#include "penstock/error.h"

namespace penstock {
namespace {

std::shared_ptr<HostPool> make_pool(std::uint64_t max_kept_bytes) {
  MemoryPoolOptions options;
  options.max_kept_bytes = max_kept_bytes;
  return host_pool(MemoryPool::create(options));
}

TEST(HostPoolTest, released_memory_is_handed_out_again) {
  const auto pool = make_pool(64 * kMiB);
  auto arena = pool->allocate(10 * kMiB);
  const std::byte* data = arena->data();
  EXPECT_FALSE(arena->reused);
  EXPECT_EQ(pool->used_bytes(), 10 * kMiB);
  arena.reset();
  EXPECT_EQ(pool->used_bytes(), 0u);
  EXPECT_EQ(pool->kept_bytes(), 10 * kMiB);
  arena = pool->allocate(10 * kMiB - 5);
  EXPECT_EQ(arena->data(), data);
  EXPECT_TRUE(arena->reused);
  EXPECT_EQ(pool->kept_bytes(), 0u);
}

// A field of the mapping that `data` lies in, in bytes, as the kernel tells it.
std::uint64_t mapping_field(const std::byte* data, std::string_view name) {
  std::ifstream maps("/proc/self/smaps");
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) found = begin <= address && address < end;
    if (found && line.starts_with(name)) return std::stoull(line.substr(name.size())) * kKiB;
  }
  ADD_FAILURE() << "no such mapping";
  return 0;
}

// Whether the kernel may take most of it: it counts a few pages late.
bool is_offered(const std::byte* data) {
  return mapping_field(data, "LazyFree:") > mapping_field(data, "Anonymous:") / 2;
}

// Takes memory, writes to all of it and lets it go, some times over.
const std::byte* use(HostPool& pool, std::size_t nbytes, int times) {
  const std::byte* data = nullptr;
  for (int i = 0; i < times; ++i) {
    const auto arena = pool.allocate(nbytes);
    data = arena->data();
    std::memset(arena->data(), 1, nbytes);
  }
  return data;
}

TEST(HostPoolTest, what_is_kept_is_offered_to_the_kernel_until_it_is_used_again) {
  constexpr std::size_t kSize = 64 * kMiB;
  const auto pool = make_pool(128 * kMiB);
  const std::byte* data = use(*pool, kSize, 1);
  EXPECT_TRUE(is_offered(data));
  EXPECT_EQ(pool->kept_bytes(), kSize);
  ASSERT_EQ(use(*pool, kSize, 1), data);
  EXPECT_TRUE(is_offered(data));
  const auto arena = pool->allocate(kSize);
  ASSERT_EQ(arena->data(), data);
  std::memset(arena->data(), 1, kSize);
  EXPECT_FALSE(is_offered(data));
}

TEST(HostPoolTest, a_child_gets_no_copy_of_what_is_kept) {
  constexpr std::size_t kSize = 64 * kMiB;
  const auto pool = make_pool(128 * kMiB);
  const std::byte* data = use(*pool, kSize, 2);
  const auto in_child = [&](const auto& check) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(check() ? 0 : 1);
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status == 0;
  };
  EXPECT_GE(mapping_field(data, "Rss:"), kSize);
  EXPECT_TRUE(in_child([&] { return mapping_field(data, "Rss:") < kSize / 2; }));
  // It may use the memory all the same; what its parent uses, it has.
  std::shared_ptr<Arena> own;  // not released there: ThreadSanitizer lets a child start no thread
  EXPECT_TRUE(in_child([&] { return (own = pool->allocate(kSize))->data() == data; }));
  const auto arena = pool->allocate(kSize);
  EXPECT_TRUE(in_child([&] { return data[0] == std::byte{1} && data[kSize - 1] == std::byte{1}; }));
}

TEST(HostPoolTest, a_request_that_would_waste_much_of_it_gets_fresh_memory) {
  const auto pool = make_pool(64 * kMiB);
  pool->allocate(10 * kMiB).reset();
  EXPECT_FALSE(pool->allocate(5 * kMiB)->reused);
  EXPECT_FALSE(pool->allocate(11 * kMiB)->reused);
}

TEST(HostPoolTest, the_oldest_goes_when_more_than_the_bound_is_kept) {
  const auto pool = make_pool(10 * kMiB);
  auto first = pool->allocate(4 * kMiB);
  auto second = pool->allocate(8 * kMiB);
  first.reset();
  second.reset();
  EXPECT_EQ(pool->kept_bytes(), 8 * kMiB);
  pool->allocate(20 * kMiB).reset();
  EXPECT_EQ(pool->kept_bytes(), 8 * kMiB);
  pool->trim();
  EXPECT_EQ(pool->kept_bytes(), 0u);
}

TEST(HostPoolTest, little_comes_from_the_heap_and_is_aligned) {
  const auto pool = make_pool(64 * kMiB);
  for (std::size_t nbytes : {0u, 1u, 100u, 4096u, 100'000u}) {
    const auto arena = pool->allocate(nbytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena->data()) % 64, 0u);
    EXPECT_GE(arena->size(), nbytes);
    std::memset(arena->data(), 1, arena->size());
  }
  EXPECT_EQ(pool->kept_bytes(), 0u);
}

TEST(HostPoolTest, memory_outlives_its_pool) {
  auto pool = make_pool(64 * kMiB);
  const auto arena = pool->allocate(1 * kMiB);
  pool.reset();
  std::memset(arena->data(), 1, arena->size());
  EXPECT_EQ(arena->data()[arena->size() - 1], std::byte{1});
}

TEST(HostPoolTest, staging_starts_at_a_huge_page) {
  const auto pool = make_pool(64 * kMiB);
  const auto arena = pool->allocate_staging(6 * kMiB);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena->data()) % (2 * kMiB), 0u);
  std::memset(arena->data(), 1, arena->size());
}

TEST(HostPoolTest, more_than_there_is_is_an_error) {
  try {
    make_pool(0)->allocate(std::uint64_t{1} << 60);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMemory);
  }
  EXPECT_THROW(make_pool(0)->allocate(~std::size_t{0} - 10), Error);
}

TEST(HostPoolTest, threads_may_share_it) {
  const auto pool = make_pool(8 * kMiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool] {
      for (std::size_t i = 1; i < 200; ++i) pool->allocate(i * 16 * kKiB)->data()[0] = std::byte{1};
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool->used_bytes(), 0u);
  EXPECT_LE(pool->kept_bytes(), 8 * kMiB);
}

TEST(MemoryLimitTest, is_a_plausible_number) {
  EXPECT_GT(memory_limit(), 16 * kMiB);
  EXPECT_LT(memory_limit(), std::uint64_t{1} << 50);
}

}  // namespace
}  // namespace penstock
