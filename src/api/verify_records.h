// The CRC-32 that every record of a torch zip has: the format's own checksums, which torch itself never looks at.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api/reader_state.h"
#include "penstock/options.h"

namespace penstock {

// A record whose bytes are not those that were written.
struct CorruptRecord {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;  // of its bytes
  std::uint64_t nbytes = 0;
  std::string problem;  // one line that names file and record
};

struct RecordReport {
  bool had_checksums = false;
  std::uint64_t bytes_read = 0;
  std::vector<CorruptRecord> corrupt;
};

// Reads every record that has a checksum: 0 says that none was stored. Files of other formats are passed over.
RecordReport verify_records(const Reader::State& state, const IoOptions& io, const ProgressFunction& progress);

// The same before a load: throws Error(kFormat) for the first one that is corrupt.
void require_intact_records(const Reader::State& state, const IoOptions& io);

}  // namespace penstock
