// Save: from what a Writer collected to files under their names, step by step:
//
//   Save save(state);   names and overlaps are judged, tensors assigned to files
//   save.prepare();     files are laid out and made, unnamed, and their space reserved: a full disk is met here
//   save.write();       the bytes; after it no tensor's memory is needed
//   save.publish();     synced, renamed, durable
//
// Who needs something between two steps (a snapshot, a check of what was read) does it there. Whatever throws, nothing
// has appeared. Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "api/save/file_save.h"
#include "api/save/writer_state.h"
#include "format/shards.h"
#include "transfer/progress.h"

namespace penstock {

class Save {
 public:
  // `state` outlives this.
  explicit Save(Writer::State& state);

  // What is going to appear.
  std::vector<std::filesystem::path> targets() const;

  // `snapshot`: images of the files will be made before write() (see snapshot.h).
  void prepare(bool snapshot = false);
  std::span<const std::unique_ptr<FileSave>> files() const noexcept { return files_; }

  void write();

  // Nothing is read from devices any more: what belongs to them is let go of. Part of write(); a snapshot may be first.
  void leave_devices();

  // `keep_index`: leave an index of the target's name alone, which may be what is being read. Else a sharded checkpoint
  // of this name is replaced: its index would hide the new file.
  Stats publish(bool keep_index = false);

  // Adds to the time of a step; steps are listed in the order in which they are first met.
  void add_phase(std::string_view name, double seconds);

 private:
  bool report(std::uint64_t done) const;
  void write_index();
  void give_names(bool keep_index);

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
};

// All steps, one after the other.
Stats save(Writer::State& state);

}  // namespace penstock
