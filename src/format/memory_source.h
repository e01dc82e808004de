// A file whose bytes are in memory: for tests, fuzz targets and checkpoints that never were a file.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "format/layout.h"

namespace penstock {

// Borrows the bytes.
class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes, std::string path = "memory")
      : bytes_(bytes), path_(std::move(path)) {}
  explicit MemorySource(std::string_view text, std::string path = "memory")
      : MemorySource(std::as_bytes(std::span(text)), std::move(path)) {}

  std::uint64_t size() const override { return bytes_.size(); }
  const std::string& path() const override { return path_; }
  void read(std::uint64_t offset, std::span<std::byte> bytes) const override {
    if (offset > bytes_.size() || bytes.size() > bytes_.size() - offset) {
      throw_format(path_, "a read of {} bytes at {} goes beyond the {} there are", bytes.size(), offset, bytes_.size());
    }
    if (!bytes.empty()) std::memcpy(bytes.data(), bytes_.data() + offset, bytes.size());
  }

 private:
  std::span<const std::byte> bytes_;
  std::string path_;
};

}  // namespace penstock
