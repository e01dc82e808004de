// Zip archives as torch writes them, or as other tools write them again: stored and deflated records, zip64, data
// descriptors.
//
// The reader is strict: the central directory, the local headers and the descriptors must say the same, records may not
// overlap, and the end record is the file's last bytes. Whatever a lenient tool could read in two ways is refused.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "format/layout.h"

namespace penstock::zip {

struct Record {
  std::string name;
  std::uint64_t header_offset = 0;  // of its local header
  std::uint64_t offset = 0;         // of its data
  std::uint64_t nbytes = 0;
  std::uint32_t crc32 = 0;
  std::uint64_t stored_nbytes = 0;  // what its data takes in the file: less than `nbytes` where it is deflated
  bool deflated = false;
};

// True when the file starts as a zip archive does.
bool looks_like(const ByteSource& source);

// Every record, by offset. Throws Error(kFormat) that names the record and what is wrong with it, or
// Error(kUnsupportedFormat) where it is encrypted, or compressed by something else than deflate.
std::vector<Record> parse(const ByteSource& source);

// Passes a record's data on, inflated where it has to be, with a fixed amount of memory. Throws Error(kFormat) when a
// deflated record does not give exactly its size. Its CRC-32 is left to the caller.
void read_record(const ByteSource& source, const Record& record,
                 const std::function<void(std::span<const std::byte>)>& take);

}  // namespace penstock::zip
