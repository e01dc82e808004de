// The steps of a load, shared by Reader::load, load_into, stream and load_slice.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/placement.h"
#include "api/reader_state.h"
#include "base/bytes.h"
#include "memory/arena.h"
#include "transfer/checksum_collector.h"
#include "transfer/load.h"

namespace penstock {

// Tensors wanted of one file, by offset.
struct FileSelection {
  std::shared_ptr<const File> file;
  std::vector<const TensorInfo*> tensors;

  ByteRange hull() const;
  std::uint64_t nbytes() const;
};

struct Selection {
  std::vector<FileSelection> files;
  std::uint64_t nbytes = 0;
  std::size_t count = 0;
  std::vector<const TensorInfo*> views;  // tensors whose elements are apart in their file; not in `files`
};

// Per file of the reader, the bytes from the first one that is wanted to the last, views included.
std::vector<ByteRange> wanted_ranges(const Reader::State& state, const Selection& selection);

Selection select_tensors(const Reader::State& state, const std::function<bool(const TensorInfo&)>& wanted);

// Whether to map what is wanted, and why (or why not): when LoadOptions asks for it, or leaves the choice and at least
// half of what is wanted is in the page cache of a local filesystem.
struct MapChoice {
  bool map = false;
  std::string reason;
};
MapChoice choose_mapping(const Reader::State& state, const Selection& selection, const LoadOptions& options);

// `reason` goes to the statistics.
LoadResult map_selection(const Selection& selection, const LoadOptions& options, std::string reason);
// Without views, LoadOptions::placed is called while bytes are on the way.
LoadResult load_selection(const Reader::State& state, const Selection& selection, const LoadOptions& options);

// One file's tensors with memory to land in.
struct Landed {
  std::shared_ptr<Arena> arena;
  Placement placement;  // its segments' addresses are real ones
};

// Takes memory for the selection and places its tensors there.
Landed take_memory(const FileSelection& selection, std::optional<DType> dtype, HostPool& pool);

Tensor make_tensor(const TensorInfo& info, const Placed& placed, const std::shared_ptr<Arena>& arena);

// The memory that a load goes to.
struct TargetMemory {
  bool hot = false;          // it was touched before
  bool may_be_huge = false;  // it is an arena with room for huge pages, which blocks can be placed on
};

// How direct reads should land, and why.
struct LandingChoice {
  LandingWay way = LandingWay::kStaged;
  std::string reason;
};
LandingChoice choose_landing(Landing asked, TargetMemory memory, const File& file, std::uint64_t nbytes,
                             std::uint64_t block_size);

// All that is decided before the first byte moves.
struct ReadPlan {
  Settings settings;
  LandingChoice landing;
  std::vector<ReadTask> tasks;        // one per file
  const char* buffered_because = "";  // why bytes go through the page cache, where they do
};

// Decides how `wants` (`nbytes` in all) are read. With `verify`, blocks keep the segments apart.
ReadPlan plan_reads(const std::vector<FileWants>& wants, std::uint64_t nbytes, TargetMemory memory,
                    const LoadOptions& options, bool verify);

// Says in the statistics, which have counted everything and have their path already, how bytes landed and why.
void describe_landing(const LandingChoice& choice, std::string_view buffered_because, Stats& stats);

// Reads `wants` (`nbytes` in all) into the memory their segments name, and says how in the statistics. `hot`: that
// memory was touched before. With `verify`, segments are whole tensors and their checksums are checked.
Stats read_wants(const Reader::State& state, const std::vector<FileWants>& wants, std::uint64_t nbytes, bool hot,
                 const LoadOptions& options, bool verify);

// Compares what a load collected with what the files say. Throws Error(kFormat) naming the first tensor that differs.
void check_checksums(const Reader::State& state, ChecksumCollector& collector,
                     const std::vector<std::optional<std::uint32_t>>& expected, const std::vector<bool>& loaded);

}  // namespace penstock
