#include "penstock/process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "penstock/memory.h"

namespace penstock {
namespace {

std::vector<std::uint8_t> numbered(std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(i * 131 + (i >> 8));
  return bytes;
}

// A child that reads this process's memory, and whose exit code says what it found.
template <typename Check>
int exit_code_of_child(const Check& check) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(check());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

constexpr int kSame = 0, kDiffers = 1, kForbidden = 2, kOtherError = 3;

int compare(const RemoteMemory& from, const std::vector<std::uint8_t>& expected) {
  std::vector<std::uint8_t> found(expected.size());
  try {
    read_process(from, found.data());
  } catch (const Error& error) {
    return error.error_number() == EPERM || error.error_number() == ENOSYS ? kForbidden : kOtherError;
  }
  return found == expected ? kSame : kDiffers;
}

TEST(ProcessTest, stretches_of_another_process_are_put_side_by_side) {
  const std::vector<std::uint8_t> bytes = numbered(3'000'000);
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  let_siblings_read();
  const std::int64_t self = ::getpid();
  std::vector<std::uint8_t> columns;
  for (std::size_t row = 0; row < 2900; ++row) {
    columns.insert(columns.end(), bytes.begin() + static_cast<std::ptrdiff_t>(row * 1000 + 17),
                   bytes.begin() + static_cast<std::ptrdiff_t>(row * 1000 + 17 + 333));
  }
  const int whole = exit_code_of_child([&] { return compare({self, address, bytes.size(), 0, 1}, bytes); });
  if (whole == kForbidden) GTEST_SKIP() << "this system does not allow processes to read each other's memory";
  EXPECT_EQ(whole, kSame);
  EXPECT_EQ(exit_code_of_child([&] { return compare({self, address + 17, 333, 1000, 2900}, columns); }), kSame);
  EXPECT_EQ(exit_code_of_child([&] { return compare({self, address, 0, 0, 5}, {}); }), kSame);
}

TEST(ProcessTest, what_is_not_there_is_an_error) {
  std::uint8_t byte = 0;
  EXPECT_THROW(read_process({0, 0, 1, 0, 1}, &byte), Error);
  EXPECT_THROW(read_process({-1, 0, 1, 0, 1}, &byte), Error);
  EXPECT_THROW(read_process({::getpid(), 8, 1, 0, 1}, &byte), Error);
  try {
    read_process({999'999'999, 4096, 1, 0, 1}, &byte);
    FAIL() << "there is no such process";
  } catch (const Error& error) {
    EXPECT_NE(std::strstr(error.what(), "process 999999999"), nullptr) << error.what();
  }
}

TEST(MemoryPoolTest, what_was_taken_goes_back_and_is_taken_again) {
  const auto pool = MemoryPool::create({.max_kept_bytes = 64 << 20});
  auto memory = pool->take(8 << 20);
  std::memset(memory.get(), 1, 8 << 20);
  EXPECT_GE(pool->used_bytes(), 8u << 20);
  const std::byte* const address = memory.get();
  memory.reset();
  EXPECT_EQ(pool->used_bytes(), 0u);
  EXPECT_GE(pool->kept_bytes(), 8u << 20);
  EXPECT_EQ(pool->take((8 << 20) + 4096).get(), address) << "nearly as large";
  EXPECT_NE(pool->take(0), nullptr);
}

}  // namespace
}  // namespace penstock
