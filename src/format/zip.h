// Zip archives as torch writes them: stored records, zip64, data descriptors.
//
// The reader is strict: the central directory, the local headers and the descriptors must say the same, records may not
// overlap, and the end record is the file's last bytes. Whatever a lenient tool could read in two ways is refused.
#pragma once

#include <cstdint>
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
};

// True when the file starts as a zip archive does.
bool looks_like(const ByteSource& source);

// Every record, by offset. Throws Error(kFormat) that names the record and what is wrong with it, or
// Error(kUnsupportedFormat) where it is compressed or encrypted.
std::vector<Record> parse(const ByteSource& source);

// What the central directory alone calls its records, also where parse() would refuse one: to say what a file is.
std::vector<std::string> list_names(const ByteSource& source);

}  // namespace penstock::zip
