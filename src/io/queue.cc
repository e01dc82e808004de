#include "io/queue.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/bytes.h"
#include "base/error.h"
#include "io/blocking.h"

namespace penstock {
namespace {

// A kernel that answers EAGAIN this often in a row, with pauses, is not going to change its mind.
constexpr unsigned kMaxStalls = 1000;
// Reads that keep ending at the same misaligned place are at the end of the file.
constexpr unsigned kMaxShortStalls = 3;

}  // namespace

RequestQueue::RequestQueue(Engine& engine, unsigned depth) : engine_(engine), transfers_(depth), completions_(depth) {
  for (std::size_t index = depth; index > 0; --index) free_.push_back(index - 1);
}

void RequestQueue::push(const Transfer& transfer) {
  const std::size_t index = free_.back();
  free_.pop_back();
  transfers_[index] = {transfer, transfer.request.tag, 0};
  start(index);
}

void RequestQueue::start(std::size_t index) {
  IoRequest request = transfers_[index].transfer.request;
  request.tag = index;
  ++requests_;
  const int result = engine_.submit(request);
  if (result < 0) finish(index, -result, false);
}

Finished RequestQueue::wait() {
  while (finished_.empty()) {
    const int count = engine_.wait(completions_);
    if (count < 0) {
      // The engine itself is broken. What was in flight can't be told finished, so nothing may be reused after this.
      throw Error(ErrorKind::kIo, fmt::format("the {} backend failed: {}", engine_.name(), errno_text(-count)), -count);
    }
    for (int i = 0; i < count; ++i) judge(completions_[static_cast<std::size_t>(i)]);
  }
  const Finished finished = finished_.back();
  finished_.pop_back();
  return finished;
}

void RequestQueue::judge(IoCompletion completion) {
  const auto index = static_cast<std::size_t>(completion.tag);
  Slot& slot = transfers_[index];
  // Nothing is ever cancelled here: io_uring could start no thread of its own (the limit of processes was reached).
  if (completion.result == -ECANCELED) completion.result = run_blocking(slot.transfer.request);
  if (completion.result == -EINTR || completion.result == -EAGAIN) {
    if (++slot.stalls > kMaxStalls) return finish(index, static_cast<int>(-completion.result), false);
    if (slot.stalls > 8) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ++resumed_;
    return start(index);
  }
  if (completion.result < 0) return finish(index, static_cast<int>(-completion.result), false);
  const auto moved = static_cast<std::uint32_t>(completion.result);
  if (moved >= slot.transfer.minimum) return finish(index, 0, false);
  const bool read = slot.transfer.request.operation == IoRequest::Operation::kRead;
  if (moved == 0) return finish(index, read ? 0 : EIO, read);
  advance(index, moved);
}

void RequestQueue::advance(std::size_t index, std::uint32_t moved) {
  Slot& slot = transfers_[index];
  const auto step = static_cast<std::uint32_t>(align_down(moved, slot.transfer.alignment));
  const bool read = slot.transfer.request.operation == IoRequest::Operation::kRead;
  slot.stalls = step == 0 ? slot.stalls + 1 : 0;
  if (slot.stalls > kMaxShortStalls) return finish(index, read ? 0 : EIO, read);
  slot.transfer.request.data += step;
  slot.transfer.request.offset += step;
  slot.transfer.request.length -= step;
  slot.transfer.minimum -= step;
  ++resumed_;
  start(index);
}

void RequestQueue::finish(std::size_t index, int error_number, bool ended_early) {
  const Slot& slot = transfers_[index];
  finished_.push_back({slot.user_tag, error_number, ended_early, slot.transfer.request.offset, slot.transfer.minimum});
  free_.push_back(index);
}

std::string describe_failure(const Finished& finished, IoRequest::Operation operation) {
  const char* verb = operation == IoRequest::Operation::kRead ? "read" : "write";
  if (finished.ended_early) {
    return fmt::format("ends early: a read of {} bytes at offset {} met the end of the file", finished.missing,
                       finished.offset);
  }
  return fmt::format("{} of {} bytes at offset {} failed: {}", verb, finished.missing, finished.offset,
                     errno_text(finished.error_number));
}

}  // namespace penstock
