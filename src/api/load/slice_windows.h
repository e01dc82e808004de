// SliceWindows: small cold slices that follow each other in a file are read together.
//
// Each such slice by itself costs a request to the drive and the time to set it up. The first of a row is read so; when
// the next begins where a slice has ended, a window of the file that goes on from there is read in one go, and the
// slices in it are copied out. Windows double along a row. A window goes when all of it was wanted, or, beyond a bound
// on all windows of a file, when it was used least recently. Safe from several threads: who wants a slice of a window
// that another thread reads waits for it.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>

#include "base/bytes.h"
#include "base/tuning.h"

namespace penstock {

class SliceWindows {
 public:
  // Reads a stretch of the file into new memory. Throws Error.
  using Fill = std::function<std::shared_ptr<const std::byte>(ByteRange)>;

  // A slice was read elsewhere: the next may follow it.
  void note(ByteRange range);

  // Copies a slice to `out` if it is in a window, or follows a slice, where a window is read first. False: it is for
  // the caller to read. `file_size`: no window goes further. Throws what `fill` throws.
  bool copy(ByteRange range, std::uint64_t file_size, const Fill& fill, std::byte* out);

  // Bytes that windows hold.
  std::uint64_t held_bytes() const;

 private:
  struct Window {
    ByteRange range;
    std::shared_ptr<const std::byte> memory;  // null while it is read
    std::uint64_t wanted = 0;                 // bytes that were copied out
  };
  using Windows = std::list<std::shared_ptr<Window>>;  // the last used first

  // The end of a slice, and how large a window that goes on from there is.
  struct Row {
    std::uint64_t end = 0;
    std::uint64_t window = 0;
  };

  Windows::iterator find(ByteRange range);
  Row* row_before(ByteRange range);
  void remember(std::uint64_t end, std::uint64_t window);
  std::shared_ptr<Window> open(ByteRange range, std::uint64_t file_size, Row& row);
  void make_room(std::uint64_t nbytes);

  mutable std::mutex mutex_;
  std::condition_variable filled_;
  Windows windows_;
  std::array<Row, tuning::kSliceRows> rows_{};  // the last ones
  std::size_t next_row_ = 0;
};

}  // namespace penstock
