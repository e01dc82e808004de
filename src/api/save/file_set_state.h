// What a FileSet has: the Writer's tensors, the layout of its files, and the new files.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "api/save/file_writer.h"
#include "api/save/writer_state.h"
#include "penstock/file_set.h"
#include "transfer/progress.h"

namespace penstock {

class FileSet::State {
 public:
  State(Writer writer, std::vector<FileSetFile> files, std::uint64_t min_free_bytes);

  void write();
  int descriptor(std::size_t file);
  std::vector<std::filesystem::path> publish_set();
  void publish_each();

  // For tests: called after each step that changes a directory.
  std::function<void(std::string_view)> after_step;

 private:
  void match_tensors();
  void make_files();
  std::vector<WritePart> parts_of(std::size_t file) const;
  void finish();
  void name_each();
  std::uint64_t nbytes() const;
  bool report(std::uint64_t done) const;

  Writer writer_;
  Writer::State& work_;
  std::vector<FileSetFile> files_;
  std::vector<std::vector<Origin>> origins_;  // of each file's tensors; none where the caller fills them
  std::vector<FileWriter> writers_;
  std::vector<bool> filled_;
  std::uint64_t total_ = 0;        // bytes of all files
  std::uint64_t done_before_ = 0;  // of the files that are written
  const Stopwatch watch_;
};

struct FileSetAccess {
  static FileSet::State& state(FileSet& set);
};

}  // namespace penstock
