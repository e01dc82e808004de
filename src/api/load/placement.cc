#include "api/load/placement.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/error.h"
#include "base/page.h"
#include "base/tuning.h"

namespace penstock {
namespace {

constexpr std::uint64_t kPage = 4096;

std::uint64_t alignment_of_run(std::uint64_t nbytes) {
  return nbytes >= tuning::kHugePageAlignedRun ? kHugePage : nbytes >= tuning::kPageAlignedRun ? kPage : kCacheLine;
}

bool keeps_its_place(const TensorInfo& tensor, DType dtype) {
  return dtype == tensor.dtype && is_aligned(tensor.offset, dtype_alignment(tensor.dtype));
}

bool is_same_place(const TensorInfo& a, const TensorInfo& b) {
  return a.offset == b.offset && a.nbytes == b.nbytes && a.dtype == b.dtype;
}

// The first address from `cursor` on that is congruent to `offset`.
std::uint64_t congruent_address(std::uint64_t cursor, std::uint64_t offset, std::uint64_t modulus) {
  return cursor + ((offset - cursor) & (modulus - 1));
}

}  // namespace

std::uint64_t converted_size(std::uint64_t nbytes, DType from, DType to) {
  return from == to ? nbytes : nbytes / (dtype_bits(from) / 8) * (dtype_bits(to) / 8);
}

std::uint64_t add_runs(const PartRuns& runs, std::uint64_t address, std::uint32_t owner, DType from, DType to,
                       std::vector<Segment>& segments) {
  runs.for_each([&](std::uint64_t offset, std::uint64_t nbytes) {
    segments.push_back({offset, nbytes, address, owner, from, to});
    address += converted_size(nbytes, from, to);
  });
  return address;
}

DType loaded_dtype(const TensorInfo& tensor, std::optional<DType> wanted) {
  if (!wanted || *wanted == tensor.dtype || !dtype_is_floating(tensor.dtype)) return tensor.dtype;
  if (dtype_can_cast(tensor.dtype, *wanted)) return *wanted;
  throw Error(ErrorKind::kUnsupported, fmt::format("tensor {}: {} can't be converted to {}", in_quotes(tensor.name),
                                                   dtype_name(tensor.dtype), dtype_name(*wanted)));
}

Placement place_tensors(std::span<const TensorInfo* const> tensors, std::optional<DType> wanted,
                        const ScatteredParts* scattered) {
  Placement placement;
  const auto runs_of = [scattered](const TensorInfo* tensor) -> const PartRuns* {
    if (scattered == nullptr) return nullptr;
    const auto found = scattered->find(tensor);
    return found == scattered->end() ? nullptr : &found->second;
  };
  placement.tensors.resize(tensors.size());
  std::uint64_t cursor = 0;
  for (std::size_t i = 0; i < tensors.size();) {
    const TensorInfo& first = *tensors[i];
    const DType dtype = loaded_dtype(first, wanted);
    if (const PartRuns* const runs = runs_of(&first)) {
      cursor = align_up(cursor, kCacheLine);
      placement.tensors[i] = {cursor, converted_size(first.nbytes, first.dtype, dtype), dtype, false};
      cursor = add_runs(*runs, cursor, static_cast<std::uint32_t>(i), first.dtype, dtype, placement.segments);
      ++i;
      continue;
    }
    // Tensors over exactly the same bytes of a file (tied ones, in formats that know them) stay one in memory.
    if (i > 0 && is_same_place(*tensors[i - 1], first) && first.nbytes > 0 && runs_of(tensors[i - 1]) == nullptr) {
      placement.tensors[i] = placement.tensors[i - 1];
      ++i;
      continue;
    }
    if (!keeps_its_place(first, dtype)) {
      const std::uint64_t nbytes = first.nbytes / std::max(1u, dtype_bits(first.dtype) / 8) * (dtype_bits(dtype) / 8);
      const bool converts = dtype != first.dtype;
      const std::uint64_t size = converts ? nbytes : first.nbytes;
      cursor = align_up(cursor, kCacheLine);
      placement.tensors[i] = {cursor, size, dtype, !converts};
      placement.segments.push_back(
          {first.offset, first.nbytes, cursor, static_cast<std::uint32_t>(i), first.dtype, dtype});
      cursor += size;
      ++i;
      continue;
    }
    // The run of tensors that follow each other in the file and stay as they are.
    std::size_t last = i + 1;
    std::uint64_t run_end = first.offset + first.nbytes;
    while (last < tensors.size() && tensors[last]->offset == run_end && runs_of(tensors[last]) == nullptr &&
           keeps_its_place(*tensors[last], loaded_dtype(*tensors[last], wanted))) {
      run_end += tensors[last++]->nbytes;
    }
    cursor = congruent_address(cursor, first.offset, alignment_of_run(run_end - first.offset));
    for (; i < last; ++i) {
      const TensorInfo& tensor = *tensors[i];
      placement.tensors[i] = {cursor, tensor.nbytes, tensor.dtype, false};
      placement.segments.push_back(
          {tensor.offset, tensor.nbytes, cursor, static_cast<std::uint32_t>(i), tensor.dtype, tensor.dtype});
      cursor += tensor.nbytes;
    }
  }
  placement.arena_size = cursor;
  // Runs of tensors over the same bytes may lie between each other.
  if (scattered != nullptr) {
    std::stable_sort(placement.segments.begin(), placement.segments.end(),
                     [](const Segment& a, const Segment& b) { return a.offset < b.offset; });
  }
  return placement;
}

}  // namespace penstock
