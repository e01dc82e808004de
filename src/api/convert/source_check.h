// SourceCheck: what a conversion reads of its source, verified as it passes by. The writer asks for some bytes twice
// (for a checksum and for the file) and in any order; what it does not ask for is read at the end.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "api/load/range_reader.h"
#include "api/load/verification.h"

namespace penstock {

class SourceCheck {
 public:
  using Readers = std::vector<std::shared_ptr<const RangeReader>>;  // of each file

  // kAny: files with a seal or checksums of their own; others are passed over. `wanted`: tensors of the reader, in its
  // order. Throws Error(kFormat) for what is damaged as a whole, or has not what was insisted on.
  SourceCheck(const Reader::State& state, Verify verify, std::vector<const TensorInfo*> wanted, Readers readers);

  // Bytes of a tensor, as they are in the file. Safe from several threads.
  void look(const TensorInfo& tensor, std::uint64_t offset, std::uint64_t nbytes, const std::byte* bytes);

  // When all was read. Throws Error(kFormat) for the first that is damaged.
  void finish();

 private:
  std::unique_ptr<Verification> make() const;
  void read(Verification& verification, std::uint32_t file, const Segment& segment) const;

  const Reader::State& state_;
  const std::vector<const TensorInfo*> wanted_;
  const Readers readers_;
  const std::shared_ptr<const Proofs> proofs_;
  std::unique_ptr<Verification> verification_;
};

}  // namespace penstock
