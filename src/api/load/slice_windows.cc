#include "api/load/slice_windows.h"

#include <algorithm>
#include <cstring>

namespace penstock {

SliceWindows::Windows::iterator SliceWindows::find(ByteRange range) {
  return std::find_if(windows_.begin(), windows_.end(), [&](const std::shared_ptr<Window>& window) {
    return window->range.begin <= range.begin && range.end <= window->range.end;
  });
}

SliceWindows::Row* SliceWindows::row_before(ByteRange range) {
  const auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& each) {
    return each.window > 0 && each.end <= range.begin && range.begin - each.end <= tuning::kSliceGap;
  });
  return row == rows_.end() ? nullptr : &*row;
}

void SliceWindows::remember(std::uint64_t end, std::uint64_t window) {
  rows_[next_row_] = {end, window};
  next_row_ = (next_row_ + 1) % rows_.size();
}

void SliceWindows::note(ByteRange range) {
  const std::lock_guard lock(mutex_);
  if (Row* row = row_before(range)) {
    row->end = range.end;
  } else {
    remember(range.end, tuning::kFirstSliceWindow);
  }
}

void SliceWindows::make_room(std::uint64_t nbytes) {
  std::uint64_t held = nbytes;
  for (const auto& window : windows_) held += window->range.size();
  for (auto it = windows_.end(); held > tuning::kMostSliceWindows && it != windows_.begin();) {
    --it;
    if ((*it)->memory == nullptr) continue;  // somebody waits for it
    held -= (*it)->range.size();
    it = windows_.erase(it);
  }
}

std::shared_ptr<SliceWindows::Window> SliceWindows::open(ByteRange range, std::uint64_t file_size, Row& row) {
  // Where other windows begin, this one ends.
  std::uint64_t end = std::min(file_size, range.begin + std::max(row.window, range.size()));
  for (const auto& window : windows_) {
    if (window->range.begin >= range.end) end = std::min(end, window->range.begin);
  }
  row = {range.end, std::min(2 * row.window, tuning::kLargestSliceWindow)};
  make_room(end - range.begin);
  windows_.push_front(std::make_shared<Window>(Window{{range.begin, end}, nullptr, 0}));
  return windows_.front();
}

bool SliceWindows::copy(ByteRange range, std::uint64_t file_size, const Fill& fill, std::byte* out) {
  std::unique_lock lock(mutex_);
  std::shared_ptr<Window> window;
  if (const auto found = find(range); found != windows_.end()) {
    windows_.splice(windows_.begin(), windows_, found);
    window = *found;
    if (Row* const row = row_before(range)) row->end = range.end;
    filled_.wait(lock, [&] { return window->memory != nullptr || window->range.size() == 0; });
    if (window->memory == nullptr) return false;  // it could not be read; this slice may be
  } else {
    Row* const row = row_before(range);
    if (row == nullptr) return false;
    window = open(range, file_size, *row);
    lock.unlock();
    std::shared_ptr<const std::byte> memory;
    try {
      memory = fill(window->range);
    } catch (...) {
      lock.lock();
      windows_.remove(window);
      window->range = {};
      filled_.notify_all();
      throw;
    }
    lock.lock();
    window->memory = std::move(memory);
    filled_.notify_all();
  }
  window->wanted += range.size();
  if (window->wanted >= window->range.size()) windows_.remove(window);
  lock.unlock();
  std::memcpy(out, window->memory.get() + (range.begin - window->range.begin), range.size());
  return true;
}

std::uint64_t SliceWindows::held_bytes() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t held = 0;
  for (const auto& window : windows_) held += window->range.size();
  return held;
}

}  // namespace penstock
