#include "api/load/verification.h"

#include <algorithm>

#include "api/load/damage.h"
#include "api/load/digests.h"
#include "base/error.h"
#include "format/torch_file.h"

namespace penstock {
namespace {

std::uint32_t number_of(const Reader::State& state, const TensorInfo& tensor) {
  return static_cast<std::uint32_t>(&tensor - state.tensors.data());
}

// The record that holds `offset`, or its end.
std::vector<zip::Record>::const_iterator record_at(const std::vector<zip::Record>& records, std::uint64_t offset) {
  const auto after = std::upper_bound(records.begin(), records.end(), offset,
                                      [](std::uint64_t at, const zip::Record& record) { return at < record.offset; });
  if (after == records.begin()) return records.end();
  const auto record = std::prev(after);
  return offset < record->offset + record->nbytes ? record : records.end();
}

// Those of one file.
std::span<const TensorInfo* const> of_file(std::span<const TensorInfo* const> tensors, std::uint32_t file) {
  const auto before = [file](const TensorInfo* tensor) { return tensor->file < file; };
  const auto first = std::partition_point(tensors.begin(), tensors.end(), before);
  const auto last =
      std::partition_point(first, tensors.end(), [file](const TensorInfo* tensor) { return tensor->file == file; });
  return {first, last};
}

std::size_t count_of_file(const Reader::State& state, std::uint32_t file) {
  return static_cast<std::size_t>(std::count_if(state.tensors.begin(), state.tensors.end(),
                                                [file](const auto& each) { return each.file == file; }));
}

// Those that are not empty count: there is nothing to read of the others, and load_into() may leave them out.
bool are_all(const Reader::State& state, std::uint32_t file, std::span<const TensorInfo* const> wanted) {
  const auto has_bytes = [file](const TensorInfo& tensor) { return tensor.file == file && tensor.nbytes > 0; };
  return std::count_if(wanted.begin(), wanted.end(), [&](const TensorInfo* tensor) { return has_bytes(*tensor); }) ==
         std::count_if(state.tensors.begin(), state.tensors.end(), has_bytes);
}

bool has_packed(const Reader::State& state, std::uint32_t file) {
  return file + 1 < state.files.size() && state.unpacked[file + 1] != nullptr;
}

// The files with a wanted tensor; of what is unpacked the one that it comes from.
std::vector<bool> wanted_files(const Reader::State& state, std::span<const TensorInfo* const> wanted) {
  std::vector<bool> files(state.files.size());
  for (const TensorInfo* tensor : wanted) files[tensor->file - (state.unpacked[tensor->file] ? 1 : 0)] = true;
  return files;
}

}  // namespace

Verification::Verification(const Reader::State& state, std::shared_ptr<const Proofs> proofs, Wanted wanted,
                           const Scope& scope)
    : state_(state),
      proofs_(std::move(proofs)),
      may_have_none_(scope.may_have_none || proofs_->wanted == Verify::kIfAny),
      check_of_(state.tensors.size()) {
  for (std::uint32_t file = 0; file < state.files.size(); ++file) {
    const FileProof& proof = proofs_->files[file];
    const Wanted its = of_file(wanted, file);
    const bool packed_wanted = has_packed(state, file) && !of_file(wanted, file + 1).empty();
    // A file without tensors is part of a load of everything.
    const bool is_empty =
        wanted.size() == state.tensors.size() && count_of_file(state, file) == 0 && !has_packed(state, file);
    if (its.empty() && !packed_wanted && !is_empty && !scope.everything) continue;
    if (proof.against == Against::kNothing && !scope.everything && !may_have_none_) proofs_->refuse(*state.files[file]);
    if (proof.against == Against::kStored) add_stored(file, its, scope);
    // Of what is unpacked the file that it comes from is checked.
    if (proof.against != Against::kSeal || state.unpacked[file]) continue;
    if (scope.range && !is_empty) {
      add_blocks(file, its, *scope.range);
    } else if (scope.everything || packed_wanted || are_all(state, file, its)) {
      add_blocks(file, its, {0, state.files[file]->size()});
    } else {
      add_sealed_tensors(file, its);
    }
  }
}

void Verification::add_stored(std::uint32_t file, Wanted wanted, const Scope& scope) {
  const StoredChecksums& stored = proofs_->stored;
  for (const TensorInfo* tensor : wanted) {
    const std::uint32_t number = number_of(state_, *tensor);
    if (!stored.tensors[number]) continue;
    const ByteRange range{tensor->offset, tensor->offset + tensor->nbytes};
    check_of_[number] =
        add_check({ChecksumKind::kCrc32c, *stored.tensors[number], file, range, "tensor " + in_quotes(tensor->name)});
  }
  add_records(file, stored.records[file], wanted, scope.everything);
  // Records without a checksum are told by a zero.
  const bool has_records = state_.infos[file].format == torch::kZipFormat && !state_.unpacked[file];
  for (const TensorInfo* tensor : wanted) {
    if (scope.everything || may_have_none_ || !has_records || tensor->nbytes == 0) continue;
    if (record_at(stored.records[file], tensor->offset) == stored.records[file].end()) {
      throw_format(state_.files[file]->path(),
                   "tensor {} can't be verified: its record has no checksum; `penstock seal` "
                   "makes a seal",
                   in_quotes(tensor->name));
    }
  }
}

void Verification::add_records(std::uint32_t file, const std::vector<zip::Record>& records, Wanted wanted,
                               bool without_tensors) {
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
    const std::uint32_t check = add_check({ChecksumKind::kCrc32, records[i].crc32, file, range, records[i].name});
    cover(file, range, {next, wanted.end()}, check);
  }
}

void Verification::add_sealed_tensors(std::uint32_t file, Wanted wanted) {
  const FoundSeal* const seal = proofs_->files[file].seal.get();
  for (const TensorInfo* tensor : wanted) {
    const SealedTensor* const sealed = seal->seal.find(tensor->name);
    if (sealed == nullptr || !sealed->describes(*tensor)) {
      throw_format(state_.files[file]->path(),
                   "is corrupt: its table of contents has another tensor {} than was sealed{}", in_quotes(tensor->name),
                   changed_hint(*state_.files[file], *seal));
    }
    const std::uint32_t check = add_check(
        {ChecksumKind::kCrc32c, sealed->crc32c, file, sealed->range(), "tensor " + in_quotes(tensor->name), seal});
    cover(file, sealed->range(), {&tensor, 1}, check);
  }
}

// Whole blocks, whatever of them `range` holds.
void Verification::add_blocks(std::uint32_t file, Wanted wanted, ByteRange range) {
  if (range.size() == 0) return;
  const FoundSeal* const seal = proofs_->files[file].seal.get();
  const std::uint64_t size = seal->seal.block_size;
  const ByteRange blocks{align_down(range.begin, size), std::min(align_up(range.end, size), seal->seal.size)};
  Check check{ChecksumKind::kCrc32c, 0, file, blocks, "", seal, /*by_block=*/true};
  cover(file, blocks, wanted, add_check(std::move(check), count_blocks(blocks.size(), size)));
}

std::uint32_t Verification::add_check(Check check, std::uint64_t sums) {
  check.first_sum = sum_count_;
  sum_count_ += static_cast<std::uint32_t>(sums);
  checks_.push_back(std::move(check));
  return static_cast<std::uint32_t>(checks_.size() - 1);
}

// Each byte counts once: by the first tensor that covers it, or else by a segment that is read for it.
void Verification::cover(std::uint32_t file, ByteRange range, Wanted wanted, std::uint32_t check) {
  std::uint64_t covered = range.begin;
  for (const TensorInfo* const tensor : wanted) {
    if (tensor->offset >= range.end) break;
    // What lies between the elements of a view is not read with it, and what overlaps counts already.
    if (tensor->nbytes == 0 || !tensor->byte_strides.empty() || tensor->offset < covered) continue;
    add_further(file, covered, tensor->offset, check);
    check_of_[number_of(state_, *tensor)] = check;
    covered = tensor->offset + tensor->nbytes;
  }
  add_further(file, covered, range.end, check);
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
  const auto number = check_of_[piece.owner];
  if (!number) return;
  const Check& check = checks_[*number];
  if (!check.by_block) return collector_.add(check.kind, check.first_sum, piece.offset, bytes, piece.nbytes);
  const std::uint64_t size = check.seal->seal.block_size;
  const std::uint64_t end = piece.offset + piece.nbytes;
  for (std::uint64_t at = piece.offset; at < end;) {
    const std::uint64_t cut = std::min(align_down(at, size) + size, end);
    const std::uint64_t block = (at - check.range.begin) / size;
    collector_.add(check.kind, check.first_sum + static_cast<std::uint32_t>(block), at, bytes + (at - piece.offset),
                   cut - at);
    at = cut;
  }
}

std::vector<Verification::Problem> Verification::find_problems() {
  std::vector<Problem> problems;
  found_ = collector_.finish(sum_count_);
  for (const Check& check : checks_) {
    if (check.by_block) {
      judge_blocks(check, problems);
    } else if (found_[check.first_sum] != check.expected) {
      problems.push_back(judge(check));
    }
  }
  return problems;
}

Verification::Problem Verification::judge(const Check& check) const {
  const File& file = *state_.files[check.file];
  return {fmt::format("{}: {} is corrupt: its {} is {:08x}, the {} says {:08x}{}", file.path(), check.subject,
                      check.kind == ChecksumKind::kCrc32 ? "CRC-32" : "CRC-32C", found_[check.first_sum],
                      check.seal != nullptr ? "seal" : "file", check.expected,
                      check.seal != nullptr ? changed_hint(file, *check.seal) : ""),
          tensors_in(check.file, check.range)};
}

// Damaged blocks that are neighbours are one problem.
void Verification::judge_blocks(const Check& check, std::vector<Problem>& problems) const {
  const Seal& seal = check.seal->seal;
  const auto first = static_cast<std::size_t>(check.range.begin / seal.block_size);
  const auto count = static_cast<std::size_t>(count_blocks(check.range.size(), seal.block_size));
  const auto is_bad = [&](std::size_t i) { return found_[check.first_sum + i] != seal.blocks[first + i]; };
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_bad(i)) continue;
    std::size_t end = i + 1;
    while (end < count && is_bad(end)) ++end;
    const ByteRange range{seal.block(first + i).begin, seal.block(first + end - 1).end};
    const File& file = *state_.files[check.file];
    const std::vector<const SealedTensor*> damaged = find_damaged(file, seal, range);
    Problem problem{describe_damage(file, *check.seal, first + i, end - i, found_[check.first_sum + i], damaged), {}};
    for (const SealedTensor* sealed : damaged) {
      const TensorInfo* const tensor = state_.find(sealed->name);
      if (tensor != nullptr && tensor->file == check.file) problem.tensors.push_back(number_of(state_, *tensor));
    }
    problems.push_back(std::move(problem));
    i = end;
  }
}

std::vector<std::uint32_t> Verification::tensors_in(std::uint32_t file, ByteRange range) const {
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t i = 0; i < state_.tensors.size(); ++i) {
    const TensorInfo& tensor = state_.tensors[i];
    if (tensor.file == file && tensor.offset >= range.begin && tensor.offset < range.end) numbers.push_back(i);
  }
  return numbers;
}

std::optional<std::uint32_t> Verification::found_crc32c(std::size_t tensor) const {
  const auto check = check_of_[tensor];
  if (!check || checks_[*check].kind != ChecksumKind::kCrc32c || checks_[*check].by_block) return std::nullopt;
  return found_[checks_[*check].first_sum];
}

void Verification::check() {
  const std::vector<Problem> problems = find_problems();
  if (!problems.empty()) throw Error(ErrorKind::kFormat, problems.front().text);
}

std::unique_ptr<Verification> start_verification(const Reader::State& state, const LoadOptions& options,
                                                 std::span<const TensorInfo* const> wanted) {
  if (options.verify == Verify::kOff) return nullptr;
  const auto proofs = std::make_shared<const Proofs>(state, options.verify);
  auto verification = std::make_unique<Verification>(state, proofs, wanted);
  const auto problems = find_problems_of_whole_files(state, *proofs, wanted, options.progress);
  if (!problems.empty()) throw Error(ErrorKind::kFormat, problems.front());
  return verification;
}

std::vector<std::string> find_problems_of_whole_files(const Reader::State& state, const Proofs& proofs,
                                                      std::span<const TensorInfo* const> wanted,
                                                      const ProgressFunction& progress) {
  std::vector<std::string> problems;
  for (std::size_t i = 0; i < state.indexes.size(); ++i) {
    const FileProof& proof = proofs.indexes[i];
    const bool insists = proofs.wanted == Verify::kSeal || proofs.wanted == Verify::kSha256;
    if (proof.against == Against::kNothing && insists) proofs.refuse(*state.indexes[i]);
    if (proof.against != Against::kSeal) continue;
    std::string problem = find_problem(*state.indexes[i], *proof.seal);
    if (!problem.empty()) problems.push_back(std::move(problem));
  }
  for (DigestProblem& problem : check_digests(state, proofs, wanted_files(state, wanted), progress)) {
    problems.push_back(std::move(problem.text));
  }
  return problems;
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
