// SetWriter: the files of a sharded checkpoint are written one after the other, and appear together or not at all.
//
// For those who have one shard's tensors in memory at a time. Who has them all uses a Writer with max_shard_size.
//
//   SetWriter set("model.safetensors");
//   set.add(std::move(writer));   // for each file: its bytes are written, and its tensors' memory is free again
//   set.publish();                // synced, named: see docs/formats/sets.md
//
// A set that is destroyed before it is published leaves nothing behind. Used from one thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "penstock/export.h"
#include "penstock/writer.h"

namespace PENSTOCK_EXPORT penstock {

class SetWriter {
 public:
  struct State;  // the library's own

  // `path` is what a single file would be called; shards and index are named after it.
  explicit SetWriter(std::filesystem::path path, bool durable = true);
  SetWriter(SetWriter&&) noexcept;
  SetWriter& operator=(SetWriter&&) noexcept;
  ~SetWriter();

  // Writes one file, without a name. The Writer's path is where errors happen, in the directory of the set; of its
  // options max_shard_size is refused, and durable is the set's. Throws Error; the set is then as it was.
  void add(Writer writer);

  std::size_t count() const noexcept;

  // One file gets the name of the set, several get names of shards and an index. They take the place of a checkpoint of
  // that name, of one file or several. `metadata`: for the index, JSON text by key; total_size, the tensors' bytes, is
  // in it in any case. Returns the paths of the files, in the order in which they were added. Throws
  // Error(kArgument) where two files have a tensor of the same name.
  std::vector<std::filesystem::path> publish(const std::map<std::string, std::string>& metadata = {});

 private:
  std::unique_ptr<State> state_;
};

}  // namespace penstock
