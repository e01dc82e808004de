#include "api/load/verification.h"

#include <algorithm>

#include "api/files/file_bytes.h"
#include "base/error.h"
#include "format/torch_file.h"
#include "format/zip.h"

namespace penstock {
namespace {

std::uint32_t number_of(const Reader::State& state, const TensorInfo& tensor) {
  return static_cast<std::uint32_t>(&tensor - state.tensors.data());
}

// Those with a checksum: 0 says that none was stored.
std::vector<zip::Record> checked_records(const Reader::State& state, std::uint32_t file) {
  std::vector<zip::Record> records;
  if (state.unpacked[file]) {
    for (const PackedBytes& part : state.unpacked[file]->parts()) {
      records.push_back({part.name, part.offset, part.offset, part.nbytes, part.crc32, part.nbytes});
    }
  } else if (state.infos[file].format == torch::kZipFormat) {
    records = zip::parse(FileBytes(*state.files[file]));
    for (zip::Record& record : records) record.name = "record " + in_quotes(record.name);
  }
  // What is deflated is checked where it is unpacked.
  std::erase_if(records,
                [](const zip::Record& record) { return record.crc32 == 0 || record.nbytes == 0 || record.deflated; });
  return records;
}

// The record that holds `offset`, or its end.
std::vector<zip::Record>::const_iterator record_at(const std::vector<zip::Record>& records, std::uint64_t offset) {
  const auto after = std::upper_bound(records.begin(), records.end(), offset,
                                      [](std::uint64_t at, const zip::Record& record) { return at < record.offset; });
  if (after == records.begin()) return records.end();
  const auto record = std::prev(after);
  return offset < record->offset + record->nbytes ? record : records.end();
}

}  // namespace

StoredChecksums::StoredChecksums(const Reader::State& state) : tensors(state.expected_checksums()) {
  for (std::uint32_t file = 0; file < state.files.size(); ++file) records.push_back(checked_records(state, file));
}

Verification::Verification(const Reader::State& state, const StoredChecksums& stored,
                           std::span<const TensorInfo* const> wanted, bool records_without_tensors)
    : state_(state), check_of_(state.tensors.size()) {
  add_tensors(stored, wanted);
  for (std::uint32_t file = 0; file < state.files.size(); ++file) {
    const auto of_file = [file](const TensorInfo* tensor) { return tensor->file < file; };
    const auto first = std::partition_point(wanted.begin(), wanted.end(), of_file);
    const auto last =
        std::partition_point(first, wanted.end(), [file](const TensorInfo* tensor) { return tensor->file == file; });
    add_records(file, stored.records[file], {first, last}, records_without_tensors);
  }
}

void Verification::add_tensors(const StoredChecksums& stored, std::span<const TensorInfo* const> wanted) {
  for (const TensorInfo* tensor : wanted) {
    const std::uint32_t number = number_of(state_, *tensor);
    if (!stored.tensors[number]) continue;
    check_of_[number] = static_cast<std::uint32_t>(checks_.size());
    checks_.push_back({ChecksumKind::kCrc32c,
                       *stored.tensors[number],
                       tensor->file,
                       {tensor->offset, tensor->offset + tensor->nbytes},
                       "tensor " + in_quotes(tensor->name)});
  }
}

void Verification::add_records(std::uint32_t file, const std::vector<zip::Record>& records,
                               std::span<const TensorInfo* const> wanted, bool without_tensors) {
  if (records.empty() || (wanted.empty() && !without_tensors)) return;
  std::vector<bool> has_tensors(records.size());
  for (const TensorInfo& tensor : state_.tensors) {
    if (!without_tensors) break;
    if (tensor.file != file || tensor.nbytes == 0) continue;
    const auto record = record_at(records, tensor.offset);
    if (record != records.end()) has_tensors[static_cast<std::size_t>(record - records.begin())] = true;
  }
  auto next = wanted.begin();
  for (std::size_t i = 0; i < records.size(); ++i) {
    const ByteRange range{records[i].offset, records[i].offset + records[i].nbytes};
    while (next != wanted.end() && (*next)->offset < range.begin) ++next;
    const auto is_inside = [&](const TensorInfo* tensor) { return tensor->offset < range.end && tensor->nbytes > 0; };
    const auto first = std::find_if(next, wanted.end(), [](const TensorInfo* tensor) { return tensor->nbytes > 0; });
    const bool is_wanted = first != wanted.end() && is_inside(*first);
    if (!is_wanted && (has_tensors[i] || !without_tensors)) continue;
    const auto check = static_cast<std::uint32_t>(checks_.size());
    checks_.push_back({ChecksumKind::kCrc32, records[i].crc32, file, range, records[i].name});
    // Each byte counts once: by the first tensor that covers it, or else by a segment that is read for it.
    std::uint64_t covered = range.begin;
    for (; next != wanted.end() && (*next)->offset < range.end; ++next) {
      const TensorInfo& tensor = **next;
      // What lies between the elements of a view is not read with it, and what overlaps counts already.
      if (tensor.nbytes == 0 || !tensor.byte_strides.empty() || tensor.offset < covered) continue;
      add_further(file, covered, tensor.offset, check);
      check_of_[number_of(state_, tensor)] = check;
      covered = tensor.offset + tensor.nbytes;
    }
    add_further(file, covered, range.end, check);
  }
}

void Verification::add_further(std::uint32_t file, std::uint64_t begin, std::uint64_t end, std::uint32_t check) {
  if (begin >= end) return;
  Segment segment;
  segment.offset = begin;
  segment.nbytes = end - begin;
  segment.address = kNowhere;
  segment.owner = static_cast<std::uint32_t>(check_of_.size());
  segment.straight = false;
  check_of_.emplace_back(check);
  further_.emplace_back(file, segment);
  further_bytes_ += segment.nbytes;
}

std::vector<Segment> Verification::further_segments(std::uint32_t file) const {
  std::vector<Segment> segments;
  for (const auto& [number, segment] : further_) {
    if (number == file) segments.push_back(segment);
  }
  return segments;
}

void Verification::look(const Piece& piece, const std::byte* bytes) {
  const auto check = check_of_[piece.owner];
  if (check) collector_.add(checks_[*check].kind, *check, piece.offset, bytes, piece.nbytes);
}

std::vector<Verification::Problem> Verification::find_problems() {
  std::vector<Problem> problems;
  found_ = collector_.finish(checks_.size());
  for (std::size_t i = 0; i < checks_.size(); ++i) {
    const Check& check = checks_[i];
    if (found_[i] == check.expected) continue;
    problems.push_back(
        {fmt::format("{}: {} is corrupt: its {} is {:08x}, the file says {:08x}", state_.files[check.file]->path(),
                     check.subject, check.kind == ChecksumKind::kCrc32 ? "CRC-32" : "CRC-32C", found_[i],
                     check.expected),
         check.file, check.range});
  }
  return problems;
}

std::optional<std::uint32_t> Verification::found_crc32c(std::size_t tensor) const {
  const auto check = check_of_[tensor];
  if (!check || checks_[*check].kind != ChecksumKind::kCrc32c) return std::nullopt;
  return found_[*check];
}

void Verification::check() {
  const std::vector<Problem> problems = find_problems();
  if (!problems.empty()) throw Error(ErrorKind::kFormat, problems.front().text);
}

std::vector<std::uint64_t> check_groups(const StoredChecksums& stored, std::uint32_t file,
                                        std::span<const TensorInfo* const> tensors) {
  const std::vector<zip::Record>& records = stored.records[file];
  std::vector<std::uint64_t> groups;
  for (const TensorInfo* tensor : tensors) {
    const auto record = record_at(records, tensor->offset);
    groups.push_back(record == records.end() ? tensor->offset : record->offset);
  }
  return groups;
}

}  // namespace penstock
