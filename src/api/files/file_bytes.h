// FileBytes: a file's header or footer as the formats see it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "format/layout.h"
#include "io/file.h"

namespace penstock {

// Borrows the file.
class FileBytes final : public ByteSource {
 public:
  explicit FileBytes(const File& file) : file_(file) {}
  std::uint64_t size() const override { return file_.size(); }
  const std::string& path() const override { return file_.path(); }
  void read(std::uint64_t offset, std::span<std::byte> bytes) const override {
    file_.read(offset, bytes.data(), bytes.size());
  }

 private:
  const File& file_;
};

}  // namespace penstock
