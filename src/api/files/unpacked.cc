#include "api/files/unpacked.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "api/files/file_bytes.h"
#include "base/error.h"

namespace penstock {
namespace {

std::uint64_t size_of(std::span<const PackedBytes> parts) {
  return parts.empty() ? 0 : parts.back().offset + parts.back().nbytes;
}

}  // namespace

UnpackedFile::UnpackedFile(std::shared_ptr<const File> source, std::vector<PackedBytes> parts)
    : source_(std::move(source)),
      parts_(std::move(parts)),
      file_(std::make_shared<const File>(File::in_memory(source_->path(), size_of(parts_)))),
      done_(parts_.size()) {}

void UnpackedFile::require(ByteRange range) const {
  const std::lock_guard lock(unpacking_.get());
  const auto first = std::partition_point(
      parts_.begin(), parts_.end(), [&](const PackedBytes& part) { return part.offset + part.nbytes <= range.begin; });
  for (auto part = first; part != parts_.end() && part->offset < range.end; ++part) {
    const auto number = static_cast<std::size_t>(part - parts_.begin());
    if (done_[number]) continue;
    unpack(*part);
    done_[number] = true;
  }
}

void UnpackedFile::unpack(const PackedBytes& part) const {
  std::uint64_t at = part.offset;
  part.unpack(FileBytes(*source_), [&](std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::pwrite(file_->fd(), bytes.data(), bytes.size(), static_cast<off_t>(at));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw_errno(source_->path(), "cannot unpack " + part.name, errno);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      at += static_cast<std::uint64_t>(count);
    }
  });
  source_->check_unchanged();
}

}  // namespace penstock
