// Save: from what a Writer collected to files under their names, step by step:
//
//   Save save(state);   names and overlaps are judged, tensors assigned to files
//   save.prepare();     files are laid out and made, unnamed, and their space reserved: a full disk is met here
//   save.write();       the bytes; after it no tensor's memory is needed
//   save.publish();     synced, named, durable: all at once (see set_publish.h)
//
// Who needs something between two steps (a snapshot, a check of what was read) does it there. Whatever throws, nothing
// has appeared. Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "api/save/file_save.h"
#include "api/save/set_publish.h"
#include "api/save/writer_state.h"
#include "format/shards.h"
#include "transfer/progress.h"

namespace penstock {

class Save {
 public:
  // `state` outlives this.
  explicit Save(Writer::State& state);

  // What is going to appear. Shards get other names than these where the names are taken.
  std::vector<std::filesystem::path> targets() const;

  // `snapshot`: images of the files will be made before write() (see snapshot.h).
  void prepare(bool snapshot = false);
  std::span<const std::unique_ptr<FileSave>> files() const noexcept { return files_; }

  void write();

  // Nothing is read from devices any more: what belongs to them is let go of. Part of write(); a snapshot may be first.
  void leave_devices();

  // The files are whole and, where that is asked for, on the drive. Part of publish(); who names them himself calls it.
  void finish();

  // Takes the place of a checkpoint of this name, of one file or several. `keep`: files that were read, which stay, and
  // the set that one of them is of does too.
  Stats publish(std::span<const std::filesystem::path> keep = {});

  // For tests: called after each step of publish() that changes the directory.
  void watch_steps(std::function<void(std::string_view)> after_step) { after_step_ = std::move(after_step); }

  // Adds to the time of a step; steps are listed in the order in which they are first met.
  void add_phase(std::string_view name, double seconds);

 private:
  bool report(std::uint64_t done) const;
  void give_names(std::span<const std::filesystem::path> keep);

  Writer::State& state_;
  const Stopwatch watch_;
  std::vector<FileContent> contents_;  // until prepare()
  ShardIndex index_;
  std::filesystem::path index_path_;
  std::vector<std::unique_ptr<FileSave>> files_;
  std::optional<NewFile> index_file_;
  std::uint64_t total_ = 0;        // bytes of all files
  std::uint64_t done_before_ = 0;  // of the files that are written
  Stats stats_;
  std::function<void(std::string_view)> after_step_;
};

// All steps, one after the other.
Stats save(Writer::State& state);

}  // namespace penstock
