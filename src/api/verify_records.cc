#include "api/verify_records.h"

#include "api/file_bytes.h"
#include "api/read_watched.h"
#include "base/error.h"
#include "format/torch_file.h"
#include "format/zip.h"
#include "transfer/checksum_collector.h"

namespace penstock {
namespace {

struct Expected {
  std::uint32_t file = 0;
  zip::Record record;
};

std::vector<Expected> list_records(const Reader::State& state) {
  std::vector<Expected> records;
  for (std::uint32_t number = 0; number < state.files.size(); ++number) {
    if (state.infos[number].format != torch::kZipFormat) continue;
    for (zip::Record& record : zip::parse(FileBytes(*state.files[number]))) {
      if (record.crc32 != 0 && record.nbytes > 0) records.push_back({number, std::move(record)});
    }
  }
  return records;
}

std::vector<FileWants> wants_of(const Reader::State& state, const std::vector<Expected>& records) {
  std::vector<FileWants> wants;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto& file = state.files[records[i].file];
    if (wants.empty() || wants.back().file != file) wants.push_back({file, {}});
    Segment segment;
    segment.offset = records[i].record.offset;
    segment.nbytes = records[i].record.nbytes;
    segment.owner = static_cast<std::uint32_t>(i);
    segment.straight = false;
    wants.back().segments.push_back(segment);
  }
  return wants;
}

}  // namespace

RecordReport verify_records(const Reader::State& state, const IoOptions& io, const ProgressFunction& progress) {
  const std::vector<Expected> records = list_records(state);
  RecordReport report;
  report.had_checksums = !records.empty();
  ChecksumCollector collector(ChecksumKind::kCrc32);
  report.bytes_read =
      read_watched(wants_of(state, records), io, progress, [&](const Piece& piece, const std::byte* bytes) {
        collector.add(piece.owner, piece.offset, bytes, piece.nbytes);
      });
  const std::vector<std::uint32_t> found = collector.finish(records.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    const zip::Record& record = records[i].record;
    if (found[i] == record.crc32) continue;
    report.corrupt.push_back(
        {records[i].file, record.offset, record.nbytes,
         fmt::format("{}: record {} is corrupt: its CRC-32 is {:08x}, the file says {:08x}",
                     state.files[records[i].file]->path(), in_quotes(record.name), found[i], record.crc32)});
  }
  return report;
}

void require_intact_records(const Reader::State& state, const IoOptions& io) {
  const RecordReport report = verify_records(state, io, {});
  if (!report.corrupt.empty()) throw Error(ErrorKind::kFormat, report.corrupt.front().problem);
}

}  // namespace penstock
