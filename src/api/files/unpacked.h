// UnpackedFile: what a file holds in another form (compressed records, arrays inside a pickle), as a file in memory
// that the engine reads like any other. A part is unpacked when it is first wanted.
//
// Safe from several threads.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/fork.h"
#include "format/layout.h"
#include "io/file.h"

namespace penstock {

class UnpackedFile {
 public:
  // `parts`: by offset. Throws Error when the system gives no such file.
  UnpackedFile(std::shared_ptr<const File> source, std::vector<PackedBytes> parts);

  // Its bytes are there only where require() was called.
  const std::shared_ptr<const File>& file() const noexcept { return file_; }
  std::span<const PackedBytes> parts() const noexcept { return parts_; }

  // Unpacks the parts that hold bytes of the range, unless that was done. Throws Error.
  void require(ByteRange range) const;

 private:
  void unpack(const PackedBytes& part) const;

  const std::shared_ptr<const File> source_;
  const std::vector<PackedBytes> parts_;
  std::shared_ptr<const File> file_;
  PerProcess<std::mutex> unpacking_;
  mutable std::vector<std::atomic<bool>> done_;
};

}  // namespace penstock
