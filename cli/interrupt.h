// Ctrl-C (SIGINT), SIGTERM and SIGHUP.
//
// The signals are blocked in every thread and received by one of our own, which may therefore do anything. What it does
// depends on what there is to clean up:
//   nothing                       the process ends at once
//   work that can be stopped      a flag is set, which the progress callback returns to the library: it undoes its work
//                                 and throws, and main() ends the process
//   a scratch directory           the same, but when that takes longer than a moment the directory is removed here and
//   the
//                                 process ended (measuring a drive can't be stopped in the middle)
// The exit code is 128 + the signal's number: 130 for Ctrl-C.
#pragma once

#include <filesystem>

namespace penstock::cli {

// Starts listening. Called once, before any other thread exists.
void listen_for_interrupts();

// The signal that arrived, or 0.
int interrupted_by() noexcept;

// Thrown by check_interrupt().
struct Interrupted {};

// Throws Interrupted when a signal arrived: for loops between two steps of long work.
void check_interrupt();

// While one exists, an interrupt waits for the work to undo itself.
class StoppableWork {
 public:
  StoppableWork();
  ~StoppableWork();
  StoppableWork(const StoppableWork&) = delete;
  StoppableWork& operator=(const StoppableWork&) = delete;
};

// A directory of ours inside `parent`, removed with all that is in it: by the destructor, or by an interrupt.
// Throws penstock::Error when it can't be made. One exists at a time.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::filesystem::path& parent);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace penstock::cli
