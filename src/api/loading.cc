#include "api/loading.h"

#include <algorithm>

#include "base/error.h"
#include "io/block_device.h"

namespace penstock {
namespace {

// So little is read that threads and copies cost more than they save.
constexpr std::uint64_t kSmallLoad = 4 * kMiB;

void count_tensors(const Landed& landed, Stats& stats) {
  for (const Placed& placed : landed.placement.tensors) stats.tensors_moved += placed.moved;
  stats.tensors += landed.placement.tensors.size();
}

std::vector<Tensor> make_tensors(const Selection& selection, const std::vector<Landed>& landed) {
  std::vector<Tensor> tensors;
  tensors.reserve(selection.count);
  for (std::size_t i = 0; i < landed.size(); ++i) {
    const std::vector<const TensorInfo*>& infos = selection.files[i].tensors;
    for (std::size_t k = 0; k < infos.size(); ++k) {
      tensors.push_back(make_tensor(*infos[k], landed[i].placement.tensors[k], landed[i].arena));
    }
  }
  return tensors;
}

// What came of landing by page. A block or two of the other kind, at the edges of a run, make nothing mixed.
void describe_pages(Stats& stats) {
  const std::uint64_t negligible = stats.bytes_direct / 100 + std::min(2 * kHugePage, stats.bytes_direct / 4);
  if (stats.bytes_copied <= negligible) {
    stats.landing = "in place";
    stats.reason = "the destination has huge pages, so bytes land in place";
  } else if (stats.bytes_direct - stats.bytes_copied <= negligible) {
    stats.landing = "staged";
    stats.reason =
        "huge pages did not come quickly, so threads copy bytes to small ones and take their page faults in parallel";
  } else {
    stats.landing = "mixed";
    stats.reason =
        "bytes land in place on huge pages; at the edges of runs, and where those did not come quickly, threads copy "
        "them";
  }
}

LandingChoice stage(TargetMemory memory) {
  return {LandingWay::kStaged,
          memory.hot ? "the drive is a virtual one, which reads faster into a few large pages"
                     : "the destination is fresh memory, so threads copy bytes there and take its page faults in "
                       "parallel"};
}

bool has_straight_read(const ReadTask& task) {
  for (std::size_t i = 0; i < task.plan.blocks.size(); ++i) {
    if (task.plan.blocks[i].straight && !task.buffered[i]) return true;
  }
  return false;
}

}  // namespace

ByteRange FileSelection::hull() const {
  if (tensors.empty()) return {};
  std::uint64_t end = 0;
  for (const TensorInfo* tensor : tensors) end = std::max(end, tensor->offset + tensor->nbytes);
  return {tensors.front()->offset, end};
}

std::uint64_t FileSelection::nbytes() const {
  std::uint64_t sum = 0;
  for (const TensorInfo* tensor : tensors) sum += tensor->nbytes;
  return sum;
}

Selection select_tensors(const Reader::State& state, const std::function<bool(const TensorInfo&)>& wanted) {
  Selection selection;
  std::optional<std::uint32_t> current;
  for (const TensorInfo& tensor : state.tensors) {
    if (wanted && !wanted(tensor)) continue;
    if (!tensor.byte_strides.empty()) {
      selection.views.push_back(&tensor);
      continue;
    }
    if (current != tensor.file) {
      current = tensor.file;
      selection.files.push_back({state.files[tensor.file], {}});
    }
    selection.files.back().tensors.push_back(&tensor);
    selection.nbytes += tensor.nbytes;
    ++selection.count;
  }
  return selection;
}

std::vector<ByteRange> wanted_ranges(const Reader::State& state, const Selection& selection) {
  std::vector<ByteRange> ranges(state.files.size());
  const auto widen = [&ranges](std::uint32_t file, ByteRange wanted) {
    if (wanted.size() == 0) return;
    ByteRange& range = ranges[file];
    range =
        range.size() == 0 ? wanted : ByteRange{std::min(range.begin, wanted.begin), std::max(range.end, wanted.end)};
  };
  for (const FileSelection& file : selection.files) widen(file.tensors.front()->file, file.hull());
  for (const TensorInfo* view : selection.views) widen(view->file, {view->offset, view->offset + view->extent()});
  return ranges;
}

Landed take_memory(const FileSelection& selection, std::optional<DType> dtype, HostPool& pool) {
  Landed landed;
  landed.placement = place_tensors(selection.tensors, dtype);
  landed.arena = pool.allocate(landed.placement.arena_size);
  const auto base = reinterpret_cast<std::uintptr_t>(landed.arena->data());
  for (Segment& segment : landed.placement.segments) segment.address += base;
  return landed;
}

Tensor make_tensor(const TensorInfo& info, const Placed& placed, const std::shared_ptr<Arena>& arena) {
  return {info.name,
          placed.dtype,
          info.shape,
          {arena->data() + placed.address, static_cast<std::size_t>(placed.nbytes)},
          arena};
}

LandingChoice choose_landing(Landing asked, TargetMemory memory, const File& file, std::uint64_t nbytes,
                             std::uint64_t block_size) {
  switch (decide_landing(asked)) {
    case Landing::kInPlace:
      return {LandingWay::kInPlace, "landing in place was asked for"};
    case Landing::kStaged:
      return {LandingWay::kStaged, "landing through staging blocks was asked for"};
    case Landing::kAuto:
      break;
  }
  if (nbytes <= kSmallLoad) return {LandingWay::kInPlace, "a small load lands in place"};
  if (memory.hot && !on_virtual_drive(file.fd())) {
    return {LandingWay::kInPlace, "the destination is memory that was used before, so bytes land in place"};
  }
  if (memory.may_be_huge && block_size % kHugePage == 0) {
    return {LandingWay::kByPage,
            "bytes land in place where the destination has huge pages, or they come quickly; elsewhere threads copy "
            "them"};
  }
  return stage(memory);
}

ReadPlan plan_reads(const std::vector<FileWants>& wants, std::uint64_t nbytes, TargetMemory memory,
                    const LoadOptions& options, bool verify) {
  ReadPlan plan;
  plan.settings = decide_settings(options.io, nbytes);
  if (wants.empty()) return plan;
  plan.landing = choose_landing(options.landing, memory, *wants.front().file, nbytes, plan.settings.block_size);
  const CachePolicy cache = options.cache == CachePolicy::kMap ? CachePolicy::kBuffered : options.cache;
  const ReadPolicy policy{cache, plan.landing.way, verify};
  for (const FileWants& file : wants) plan.tasks.push_back(plan_file(file, policy, plan.settings.block_size));
  // Tensors that are converted, misaligned or small leave no page to choose.
  if (plan.landing.way == LandingWay::kByPage &&
      std::none_of(plan.tasks.begin(), plan.tasks.end(), has_straight_read)) {
    plan.landing = stage(memory);
  }
  const auto is_refused = [](const ReadTask& task) { return !task.drop_behind.empty(); };
  plan.buffered_because = cache == CachePolicy::kBuffered ? "reads through the page cache were asked for"
                          : std::any_of(plan.tasks.begin(), plan.tasks.end(), is_refused)
                              ? "direct I/O is refused here, so bytes pass through the page cache and leave it again"
                              : "the bytes came from the page cache";
  return plan;
}

void describe_landing(const LandingChoice& choice, std::string_view buffered_because, Stats& stats) {
  stats.reason = choice.reason;
  if (stats.bytes_direct == 0) {
    stats.landing = "copied";
  } else if (choice.way == LandingWay::kByPage) {
    describe_pages(stats);
  } else {
    stats.landing = choice.way == LandingWay::kInPlace ? "in place" : "staged";
  }
  if (stats.path == "buffered") stats.reason = buffered_because;
}

void check_checksums(const Reader::State& state, ChecksumCollector& collector,
                     const std::vector<std::optional<std::uint32_t>>& expected, const std::vector<bool>& loaded) {
  const std::vector<std::uint32_t> found = collector.finish(expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!loaded[i] || !expected[i] || *expected[i] == found[i]) continue;
    const TensorInfo& tensor = state.tensors[i];
    throw_format(state.files[tensor.file]->path(), "tensor {} is corrupt: its CRC-32C is {:08x}, the file says {:08x}",
                 in_quotes(tensor.name), found[i], *expected[i]);
  }
}

LoadResult load_selection(const Reader::State& state, const Selection& selection, const LoadOptions& options) {
  const Stopwatch watch;
  const auto pool = host_pool(options.pool);
  std::vector<Landed> landed;
  TargetMemory memory{.hot = !selection.files.empty()};
  for (const FileSelection& file : selection.files) {
    landed.push_back(take_memory(file, options.dtype, *pool));
    const Arena& arena = *landed.back().arena;
    memory.hot = memory.hot && arena.reused;
    memory.may_be_huge = memory.may_be_huge || arena.pages != nullptr;
  }
  LoadResult result;
  auto batch = std::make_shared<ReadBatch>();
  batch->populate = !memory.hot;
  ChecksumCollector collector;
  std::vector<std::optional<std::uint32_t>> expected;
  std::vector<bool> loaded(options.verify ? state.tensors.size() : 0);
  if (options.verify) {
    expected = state.expected_checksums();
    batch->observe = [&collector](const Piece& piece, const std::byte* bytes) {
      collector.add(piece.owner, piece.offset, bytes, piece.nbytes);
    };
  }
  std::vector<FileWants> wants;
  for (std::size_t i = 0; i < landed.size(); ++i) {
    wants.push_back({selection.files[i].file, landed[i].placement.segments});
    for (Segment& segment : wants.back().segments) {
      const auto number = static_cast<std::size_t>(selection.files[i].tensors[segment.owner] - state.tensors.data());
      segment.owner = static_cast<std::uint32_t>(number);
      if (options.verify) loaded[number] = true;
    }
    batch->memory.push_back(landed[i].arena);
    count_tensors(landed[i], result.stats);
  }
  ReadPlan plan = plan_reads(wants, selection.nbytes, memory, options, options.verify);
  batch->tasks = std::move(plan.tasks);
  for (std::size_t i = 0; i < landed.size(); ++i) {
    batch->tasks[i].pages = landed[i].arena->pages.get();
  }

  {
    Crew crew(plan.settings, pool);
    start_reading(crew, batch);
    wait_with_progress(*batch, options.progress, selection.nbytes, watch, [&] {
      result.tensors = make_tensors(selection, landed);
      if (options.placed && selection.views.empty()) options.placed(result.tensors);
    });
    check_unchanged(batch->tasks);
    // The crew's threads have counted everything once they are gone.
    crew.stop();
    describe(crew, plan.settings, result.stats);
  }
  if (options.verify) check_checksums(state, collector, expected, loaded);

  result.stats.bytes = selection.nbytes;
  describe_landing(plan.landing, plan.buffered_because, result.stats);
  result.stats.seconds = watch.seconds();
  return result;
}

}  // namespace penstock
