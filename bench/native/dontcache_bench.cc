// dontcache_bench read FILE | write FILE NBYTES: a file moved by buffered I/O that leaves nothing in the page cache,
// measured for bench/race.py. What the drive gives to a program that only moves bytes that way; fio of Debian 12 can't
// ask for it.
//
// Reads: four threads, a block of 1 MiB each at a time. Writes: one thread, since each extends the file; fsync at the
// end.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "process.h"

namespace {

using penstock::bench::Probe;
using penstock::bench::Result;

constexpr int kDontCache = 0x80;  // RWF_DONTCACHE; the headers of Debian 12 don't have it
constexpr std::size_t kBlock = std::size_t{1} << 20;
constexpr int kReaders = 4;

class File {
 public:
  File(const char* path, int flags) : descriptor_(open(path, flags | O_CLOEXEC, 0644)) {
    if (descriptor_ < 0) fail(path);
  }
  ~File() { close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return descriptor_; }

  std::uint64_t size() const {
    struct stat status {};
    if (fstat(descriptor_, &status) != 0) fail("fstat");
    return static_cast<std::uint64_t>(status.st_size);
  }

  [[noreturn]] static void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

 private:
  int descriptor_;
};

// Takes blocks off the file until none is left; gives the errno of what failed, or 0.
int read_blocks(const File& file, std::uint64_t size, std::atomic<std::uint64_t>& next) {
  std::vector<std::byte> buffer(kBlock);
  for (std::uint64_t offset; (offset = next.fetch_add(kBlock)) < size;) {
    for (std::uint64_t at = offset, end = std::min(offset + kBlock, size); at < end;) {
      const iovec place{buffer.data(), static_cast<std::size_t>(end - at)};
      const ssize_t moved = preadv2(file.descriptor(), &place, 1, static_cast<off_t>(at), kDontCache);
      if (moved < 0) return errno;
      if (moved == 0) return EIO;
      at += static_cast<std::uint64_t>(moved);
    }
  }
  return 0;
}

void read_file(const File& file) {
  std::atomic<std::uint64_t> next{0};
  std::atomic<int> error{0};
  const std::uint64_t size = file.size();
  std::vector<std::thread> readers;
  for (int i = 0; i < kReaders; ++i) {
    readers.emplace_back([&] {
      if (const int failed = read_blocks(file, size, next)) error = failed;
    });
  }
  for (std::thread& reader : readers) reader.join();
  if (error) throw std::system_error(error, std::generic_category(), "preadv2");
}

void write_file(const File& file, std::uint64_t size) {
  std::vector<std::byte> buffer(kBlock, std::byte{0x5a});
  for (std::uint64_t at = 0; at < size;) {
    const iovec place{buffer.data(), static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, size - at))};
    const ssize_t moved = pwritev2(file.descriptor(), &place, 1, static_cast<off_t>(at), kDontCache);
    if (moved < 0) File::fail("pwritev2");
    at += static_cast<std::uint64_t>(moved);
  }
  if (fsync(file.descriptor()) != 0) File::fail("fsync");
}

Result measure_read(const char* path) {
  const File file(path, O_RDONLY);
  penstock::bench::wait_for_start();
  const Probe probe;
  read_file(file);
  Result result = probe.finish();
  result["bytes"] = static_cast<double>(file.size());
  return result;
}

Result measure_write(const char* path, std::uint64_t size) {
  penstock::bench::wait_for_start();
  const Probe probe;
  const File file(path, O_WRONLY | O_CREAT | O_TRUNC);
  write_file(file, size);
  Result result = probe.finish();
  result["bytes"] = static_cast<double>(size);
  return result;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string_view way = argc > 1 ? argv[1] : "";
  if (way == "read" && argc == 3) {
    penstock::bench::print_result(measure_read(argv[2]));
  } else if (way == "write" && argc == 4) {
    penstock::bench::print_result(measure_write(argv[2], std::strtoull(argv[3], nullptr, 10)));
  } else {
    std::fprintf(stderr, "usage: dontcache_bench read FILE | write FILE NBYTES\n");
    return 2;
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "dontcache_bench: %s\n", error.what());
  return 1;
}
