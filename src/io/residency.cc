#include "io/residency.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <vector>

#include "base/page.h"

namespace penstock {
namespace {

constexpr long kCachestatNumber = 451;  // the same on every architecture
constexpr std::uint32_t kOverlayfs = 0x794C7630;
constexpr std::uint64_t kMincoreWindow = 1 * kGiB;
constexpr std::size_t kSampledPages = 64;
constexpr std::uint64_t kPagesPerSample = 128;

struct CachestatRange {
  std::uint64_t offset;
  std::uint64_t length;
};

struct Cachestat {
  std::uint64_t cached;
  std::uint64_t dirty;
  std::uint64_t writeback;
  std::uint64_t evicted;
  std::uint64_t recently_evicted;
};

bool on_overlayfs(int fd) {
  struct statfs status {};
  return ::fstatfs(fd, &status) == 0 && static_cast<std::uint32_t>(status.f_type) == kOverlayfs;
}

// The kernel's own rule for whom it tells the truth.
bool may_see_residency(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return false;
  return status.st_uid == ::geteuid() || ::access(fmt::format("/proc/self/fd/{}", fd).c_str(), W_OK) == 0;
}

// Resident pages of one window, or -errno.
std::int64_t mincore_window(int fd, std::uint64_t begin, std::uint64_t length, std::vector<unsigned char>& pages) {
  void* mapping = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(begin));
  if (mapping == MAP_FAILED) return -errno;
  pages.resize((length + page_size() - 1) / page_size());
  const int result = ::mincore(mapping, length, pages.data());
  const int error_number = errno;
  ::munmap(mapping, length);
  if (result != 0) return -error_number;
  return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
}

}  // namespace

std::int64_t resident_bytes_by_cachestat(int fd, ByteRange range) {
  if (range.size() == 0) return 0;
  const CachestatRange asked{range.begin, range.size()};
  Cachestat answer{};
  if (::syscall(kCachestatNumber, fd, &asked, &answer, 0) != 0) return -errno;
  return static_cast<std::int64_t>(std::min(answer.cached * page_size(), range.size()));
}

std::int64_t resident_bytes_by_mincore(int fd, ByteRange range) {
  std::vector<unsigned char> pages;
  std::uint64_t resident = 0;
  for (std::uint64_t begin = align_down(range.begin, page_size()); begin < range.end; begin += kMincoreWindow) {
    const std::uint64_t length = std::min(kMincoreWindow, range.end - begin);
    const std::int64_t count = mincore_window(fd, begin, length, pages);
    if (count < 0) return count;
    resident += static_cast<std::uint64_t>(count) * page_size();
  }
  return static_cast<std::int64_t>(std::min(resident, range.size()));
}

std::int64_t resident_bytes_by_sample(int fd, ByteRange range) {
  if (range.size() == 0) return 0;
  const std::uint64_t pages = (range.size() + page_size() - 1) / page_size();
  const std::uint64_t samples = std::min(pages, std::clamp<std::uint64_t>(pages / kPagesPerSample, 4, kSampledPages));
  // A page that is asked for may be there the next time, so each time others are asked for.
  thread_local std::minstd_rand random{std::random_device{}()};
  std::uint64_t resident = 0;
  for (std::uint64_t i = 0; i < samples; ++i) {
    const std::uint64_t first = pages * i / samples;
    const std::uint64_t count = pages * (i + 1) / samples - first;
    const std::uint64_t offset = std::min(range.begin + (first + random() % count) * page_size(), range.end - 1);
    char byte = 0;
    const iovec buffer{&byte, 1};
    resident += ::preadv2(fd, &buffer, 1, static_cast<off_t>(offset), RWF_NOWAIT) == 1;
  }
  return static_cast<std::int64_t>(resident == samples ? range.size() : range.size() / samples * resident);
}

Residency find_residency(int fd, ByteRange range) {
  const char* source = "cachestat";
  std::int64_t bytes = resident_bytes_by_cachestat(fd, range);
  if (bytes < 0 || (bytes == 0 && on_overlayfs(fd))) {
    const bool honest = may_see_residency(fd);
    source = honest ? "mincore" : "sample";
    bytes = honest ? resident_bytes_by_mincore(fd, range) : resident_bytes_by_sample(fd, range);
  }
  return bytes < 0 ? Residency{} : Residency{static_cast<std::uint64_t>(bytes), source};
}

bool memory_is_resident(const std::byte* data, std::size_t nbytes) {
  const std::uint64_t first = align_down(reinterpret_cast<std::uintptr_t>(data), page_size());
  const std::uint64_t last = reinterpret_cast<std::uintptr_t>(data) + nbytes;
  const std::uint64_t step = std::max(page_size(), align_down((last - first) / kSampledPages, page_size()));
  std::size_t sampled = 0;
  std::size_t resident = 0;
  for (std::uint64_t page = first; page < last; page += step) {
    unsigned char state = 0;
    if (::mincore(reinterpret_cast<void*>(page), page_size(), &state) != 0) return false;
    ++sampled;
    resident += state & 1;
  }
  return sampled > 0 && resident * 10 >= sampled * 9;
}

}  // namespace penstock
