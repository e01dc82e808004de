// FileSet: safetensors files that the caller has laid out, which appear together or not at all.
//
// The caller says what each file begins with and where its tensors go; everything else of a file is zeros. Bytes come
// from a Writer's tensors, or from whoever fills the files through a mapping. The steps, each of which may throw:
//
//   FileSet set(std::move(writer), std::move(files));   files without names, their space reserved: a full disk is met
//   set.write();                                        the tensors' bytes
//   set.publish_set();                                  synced, named: see docs/formats/sets.md
//
// or, where the Writer has no tensors, descriptor() for each file in place of write(). A FileSet that is destroyed
// before it is published leaves nothing behind.
//
// The Writer's path names the set, "model.safetensors"; of its options durable, method, io, gds, streams and progress
// count, and `dtype`. Tensors that share memory are each written in full. Used from one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "penstock/export.h"
#include "penstock/writer.h"

namespace PENSTOCK_EXPORT penstock {

struct FileSetTensor {
  std::string name;  // as it was added to the Writer
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
};

struct FileSetFile {
  std::filesystem::path path;
  std::string header;  // its first bytes
  std::uint64_t size = 0;
  std::vector<FileSetTensor> tensors;
};

class FileSet {
 public:
  class State;  // the library's own

  // Makes the files and reserves their space. `min_free_bytes`: that are left to others on every filesystem. Throws
  // Error(kArgument) for a layout that makes no sense, and Error(kNoSpace).
  FileSet(Writer writer, std::vector<FileSetFile> files, std::uint64_t min_free_bytes = 0);
  FileSet(FileSet&&) noexcept;
  FileSet& operator=(FileSet&&) noexcept;
  ~FileSet();

  // Writes all files from the Writer's tensors, whose memory is free again after it.
  void write();

  // A descriptor of a file whose header is written and whose size is allocated, for a shared mapping. It is the set's:
  // what lies behind it must not change any more once the set is published.
  int descriptor(std::size_t file);

  // Gives all files names as one checkpoint, which takes the place of one of the Writer's path, of a file or several,
  // and of the files that have the names now. Their paths are "model-00001-of-00004.safetensors", or, where such are
  // there, "model-g2-00001-of-00004.safetensors"; the index is beside them. Returns the files' paths.
  std::vector<std::filesystem::path> publish_set();

  // Gives each file its own name. None has it before all are complete and, if asked for, durable; from then on they
  // appear one by one.
  void publish_each();

 private:
  friend struct FileSetAccess;
  std::shared_ptr<State> state_;
};

}  // namespace penstock
