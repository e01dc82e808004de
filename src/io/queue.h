// RequestQueue: whole transfers on top of an Engine. Short ones are resumed, interrupted ones repeated, every
// completion is looked at; what comes out has either moved all the bytes it had to or failed with a reason.
//
// Belongs to one thread, like its engine. The buffers of what is in flight belong to the queue until it is returned.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/engine.h"

namespace penstock {

struct Transfer {
  IoRequest request;            // its tag comes back
  std::uint32_t minimum = 0;    // bytes that must move: less than the length where an aligned read reaches past the end
  std::uint32_t alignment = 1;  // a resumed request starts at a multiple of this (direct I/O)
};

struct Finished {
  std::uint64_t tag = 0;
  int error_number = 0;       // 0: whole
  bool ended_early = false;   // a read met the end of the file before its minimum
  std::uint64_t offset = 0;   // where it stopped, when it failed
  std::uint32_t missing = 0;  // bytes of the minimum that did not move
};

class RequestQueue {
 public:
  RequestQueue(Engine& engine, unsigned depth);

  bool full() const noexcept { return free_.empty(); }
  // Nothing in flight and nothing finished that wait() has not returned.
  bool idle() const noexcept { return free_.size() == transfers_.size() && finished_.empty(); }

  // Starts one; must not be full(). A request that the engine does not take comes out of wait() as failed.
  void push(const Transfer& transfer);

  // Waits for the next one to finish; must not be idle().
  Finished wait();

  std::uint64_t requests() const noexcept { return requests_; }
  std::uint64_t resumed() const noexcept { return resumed_; }

 private:
  struct Slot {
    Transfer transfer;
    std::uint64_t user_tag = 0;
    unsigned stalls = 0;  // times in a row that nothing moved
  };

  void start(std::size_t index);
  // Resumes, repeats or finishes what a completion belongs to.
  void judge(IoCompletion completion);
  void advance(std::size_t index, std::uint32_t moved);
  void finish(std::size_t index, int error_number, bool ended_early);

  Engine& engine_;
  std::vector<Slot> transfers_;
  std::vector<std::size_t> free_;
  std::vector<Finished> finished_;
  std::vector<IoCompletion> completions_;
  std::uint64_t requests_ = 0;
  std::uint64_t resumed_ = 0;
};

// "read of 4096 bytes at offset 512 failed: Input/output error", ready to follow a path.
std::string describe_failure(const Finished& finished, IoRequest::Operation operation);

}  // namespace penstock
