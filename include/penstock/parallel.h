// ParallelSave: one file, or one set of shards, written by several processes at once, each its share of the bytes.
//
// Every process holds the whole state (replicas do) and adds the same tensors in the same order, so all lay out the
// same files. Who tells whom is the caller's: MPI, torch.distributed, a pipe. The steps, each of which may throw:
//
//   all     ParallelSave save(std::move(writer));      compare fingerprint() with the others'
//   first   const std::string names = save.create();   tell the others
//   others  save.join(names);
//   all     const auto sums = save.write(rank, count); tell the first one
//   first   save.commit(all_sums);                     only now the target changes
//
// A process that gives up is destroyed and tells the others; when the first one is destroyed before commit() has
// returned, the temporary files go and the target is what it was. Shards and their index appear as one (see
// penstock/writer.h).
//
// Tensors may lie on devices, as for Writer: write() and commit() wait for the streams.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/export.h"
#include "penstock/writer.h"

namespace PENSTOCK_EXPORT penstock {

// What one process found of one tensor: the checksum of the part that it wrote.
struct ShareChecksum {
  std::uint32_t tensor = 0;
  std::uint32_t checksum = 0;
  std::uint64_t offset = 0;  // in its file
  std::uint64_t nbytes = 0;
};

class ParallelSave {
 public:
  struct State;  // the library's own

  // Takes what `writer` collected.
  explicit ParallelSave(Writer writer);
  ParallelSave(ParallelSave&&) noexcept;
  ParallelSave& operator=(ParallelSave&&) noexcept;
  ~ParallelSave();

  // Equal in all processes whose files would be equal in everything but the tensors' bytes.
  std::uint64_t fingerprint() const noexcept;

  // Makes the temporary files beside the target and reserves their space. Returns what join() needs.
  std::string create();

  // Opens the files that another process made.
  void join(const std::string& temporaries);

  // Writes share `rank` of `count`, the shares being equal but for alignment, and syncs it.
  std::vector<ShareChecksum> write(unsigned rank, unsigned count);

  // Writes what lies between the data, syncs, and gives the files their names. `checksums`: of all processes.
  Stats commit(std::span<const ShareChecksum> checksums);

 private:
  std::shared_ptr<State> state_;
};

}  // namespace penstock
