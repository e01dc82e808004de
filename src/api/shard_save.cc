#include "api/shard_save.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <map>
#include <thread>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/page.h"
#include "base/unique_fd.h"
#include "format/checksums.h"
#include "format/detect.h"
#include "transfer/checksum_collector.h"
#include "transfer/load.h"

namespace penstock {
namespace {

// Where the data should start so that as many bytes as possible can be written straight from tensor memory: file offset
// and address must agree modulo the alignment of direct I/O.
safetensors::Placement choose_placement(const Shard& shard, std::span<const std::uint64_t> offsets,
                                        std::uint64_t alignment) {
  constexpr std::uint64_t kWorthIt = 1 * kMiB;
  std::map<std::uint64_t, std::uint64_t> votes;  // phase -> bytes that it serves
  for (std::size_t i = 0; i < shard.specs.size(); ++i) {
    if (shard.origins[i].data == nullptr || shard.specs[i].nbytes < kWorthIt) continue;
    const std::uint64_t phase =
        (reinterpret_cast<std::uintptr_t>(shard.origins[i].data) - offsets[i]) & (alignment - 1);
    if (phase % 8 == 0) votes[phase] += shard.specs[i].nbytes;
  }
  if (votes.empty()) return {};
  const auto best =
      std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return {alignment, best->first};
}

// Syncs on a thread of its own, so that the caller stays able to stop: a file of which much is still in the page cache
// can take seconds. A sync that is given up goes on by itself on a second descriptor; its file has no name and will not
// get one.
void sync_watched(NewFile& file, const std::function<bool()>& keep_going) {
  UniqueFd copy(::dup(file.fd()));
  if (!copy) return;  // finish() syncs, unwatched
  std::promise<int> promise;
  std::future<int> synced = promise.get_future();
  try {
    std::thread([fd = std::move(copy), done = std::move(promise)]() mutable {
      done.set_value(::fsync(fd.get()) == 0 ? 0 : errno);
    }).detach();
  } catch (const std::system_error&) {
    return;
  }
  while (synced.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
    if (!keep_going()) throw Error(ErrorKind::kCancelled, "cancelled");
  }
  // The kernel tells of a lost write once: the sync in finish() would not hear of it again.
  if (const int error_number = synced.get(); error_number != 0) {
    throw_errno(file.path(), "sync failed, the data may not have reached the drive", error_number);
  }
}

// Small enough that asking the filesystem what it can do would take longer than writing through the page cache does.
bool is_small(const Shard& shard) {
  constexpr std::uint64_t kSmallFile = 256 * kKiB;
  std::uint64_t nbytes = 0;
  for (const TensorSpec& spec : shard.specs) nbytes += spec.nbytes;
  return nbytes <= kSmallFile;
}

// A function that produces a tensor is promised whole elements, but a file is cut into blocks at any byte.
Origin by_whole_elements(Origin origin, std::uint64_t width) {
  if (!origin.fill || width <= 1) return origin;
  return {nullptr, [fill = std::move(origin.fill), width](std::uint64_t offset, std::span<std::byte> bytes) {
            if (offset % width == 0 && bytes.size() % width == 0) return fill(offset, bytes);
            std::vector<std::byte> element(width);
            const std::uint64_t end = offset + bytes.size();
            while (offset < end) {
              const std::uint64_t skipped = offset % width;
              const std::uint64_t whole = (end - offset) / width * width;
              std::uint64_t step = whole;
              if (skipped == 0 && whole > 0) {
                fill(offset, bytes.first(whole));
              } else {
                fill(offset - skipped, element);
                step = std::min(width - skipped, end - offset);
                std::copy_n(element.begin() + static_cast<std::ptrdiff_t>(skipped), step, bytes.begin());
              }
              bytes = bytes.subspan(step);
              offset += step;
            }
          }};
}

// torch calls the folder of a zip after the file, or "archive" where the name is not one that it can use.
std::string torch_folder(const std::filesystem::path& path) {
  const std::string stem = path.stem().native();
  const bool is_ascii = std::all_of(stem.begin(), stem.end(), [](char letter) { return letter > 0; });
  return is_ascii ? stem : "archive";
}

// What a save leaves to the format.
EncodeOptions encode_options(const Shard& shard, const SaveOptions& save) {
  EncodeOptions options;
  options.flashpack = save.flashpack;
  options.torch = {save.torch, torch_folder(shard.path), {}};
  if (save.torch.pickle) {
    for (const TensorSpec& spec : shard.specs) options.torch.keys.push_back(spec.name);
  }
  return options;
}

void sort_parts(std::vector<WritePart>& parts) {
  std::stable_sort(parts.begin(), parts.end(),
                   [](const WritePart& a, const WritePart& b) { return a.offset < b.offset; });
}

// The bytes of `part` from `begin` to `end`, both offsets in the file.
WritePart cut_part(const WritePart& part, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t skipped = begin - part.offset;
  WritePart cut{begin, end - begin, {}};
  if (part.origin.data != nullptr) {
    cut.origin.data = part.origin.data + skipped;
  } else {
    cut.origin.fill = [fill = part.origin.fill, skipped](std::uint64_t offset, std::span<std::byte> bytes) {
      fill(skipped + offset, bytes);
    };
  }
  return cut;
}

// `parts` less what `taken`, which lies within single parts, covers; both by offset.
std::vector<WritePart> without(std::span<const WritePart> parts, std::span<const WritePart> taken) {
  std::vector<WritePart> rest;
  auto next = taken.begin();
  for (const WritePart& part : parts) {
    std::uint64_t begin = part.offset;
    const std::uint64_t end = part.offset + part.nbytes;
    for (; next != taken.end() && next->offset < end; ++next) {
      if (next->nbytes == 0 || next->offset < begin) continue;
      if (next->offset > begin) rest.push_back(cut_part(part, begin, next->offset));
      begin = next->offset + next->nbytes;
    }
    if (begin < end) rest.push_back(cut_part(part, begin, end));
  }
  return rest;
}

bool is_left_to_us(const SaveOptions& options) {
  return options.method == WriteMethod::kAuto && decide_landing(options.landing) == Landing::kAuto;
}

WriteRoute decide_route(const Shard& shard, NewFile& file, const SaveOptions& options) {
  const bool buffered = is_left_to_us(options) && is_small(shard);
  return choose_route(file, buffered ? WriteMethod::kBuffered : options.method, decide_landing(options.landing));
}

}  // namespace

ShardSave::ShardSave(Shard shard, const SaveOptions& options, bool snapshot)
    : shard_(std::move(shard)),
      options_(options),
      small_(is_small(shard_)),
      file_(NewFile::create(shard_.path)),
      route_(decide_route(shard_, file_, options)) {
  // A snapshot lies as the file does, however that is laid out.
  if (snapshot) placement_ = safetensors::Placement{};
  prepare(!small_);
}

ShardSave::ShardSave(Shard shard, const SaveOptions& options, NewFile file, bool reserve)
    : shard_(std::move(shard)),
      options_(options),
      small_(false),
      file_(std::move(file)),
      route_(choose_route(file_, options.method, Landing::kStaged)) {
  prepare(reserve);
}

void ShardSave::prepare(bool reserve) {
  const Stopwatch layout_watch;
  for (std::size_t i = 0; i < shard_.origins.size(); ++i) {
    shard_.origins[i] = by_whole_elements(std::move(shard_.origins[i]), dtype_bits(shard_.specs[i].dtype) / 8);
  }
  // Room for them; which value each has does not matter yet.
  if (options_.checksums) {
    shard_.metadata[std::string(kChecksumKey)] = encode_checksums(std::vector<std::uint32_t>(shard_.specs.size()));
  }
  encode();
  layout_seconds_ = layout_watch.seconds();
  const Stopwatch reserve_watch;
  if (reserve) file_.reserve(align_up(layout_.file_size, route_.alignment));
  reserve_seconds_ = reserve_watch.seconds();
}

std::string ShardSave::reason() const {
  if (route_.direct) return "the filesystem takes direct writes";
  if (small_ && is_left_to_us(options_)) return "a small file is quickest through the page cache";
  return "the filesystem refuses direct writes, or another way was asked for";
}

std::vector<WritePart> ShardSave::tensor_parts() const {
  std::vector<WritePart> parts;
  for (const std::uint32_t number : layout_.order) {
    parts.push_back({layout_.offsets[number], shard_.specs[number].nbytes, shard_.origins[number]});
  }
  return parts;
}

std::optional<ChecksumKind> ShardSave::wanted_checksums() const {
  const bool own = has_own_checksums(options_.format);
  if (!options_.checksums && !(own && options_.torch.checksums)) return std::nullopt;
  return own ? ChecksumKind::kCrc32 : ChecksumKind::kCrc32c;
}

void ShardSave::write_from(std::shared_ptr<std::byte> image, std::span<const std::uint32_t> checksums) {
  if (wanted_checksums()) {
    std::vector<std::uint32_t> by_spec(checksums.size());
    for (std::size_t i = 0; i < checksums.size(); ++i) by_spec[layout_.order[i]] = checksums[i];
    set_checksums(std::move(by_spec));
    encode();
  }
  for (std::size_t i = 0; i < shard_.origins.size(); ++i) shard_.origins[i] = {image.get() + layout_.offsets[i], {}};
  for (const WritePart& part : all_parts()) {
    if (part.nbytes == 0) continue;
    const std::span to(image.get() + part.offset, static_cast<std::size_t>(part.nbytes));
    if (part.origin.data == nullptr) {
      part.origin.fill(0, to);
    } else if (part.origin.data != to.data()) {
      std::copy_n(part.origin.data, to.size(), to.data());
    }
  }
  image_ = std::move(image);
  // As quick as through staging blocks even on virtual drives, since such memory came in large stretches.
  if (route_.direct) route_.straight = decide_landing(options_.landing) != Landing::kStaged;
}

void ShardSave::write(Crew& crew, const std::function<bool(std::uint64_t)>& progress) {
  if (image_ != nullptr) {
    const WritePart whole{0, layout_.file_size, {image_.get(), {}}};
    return run(crew, {&whole, 1}, {}, 0, progress);
  }
  const auto kind = wanted_checksums();
  if (!kind) return run(crew, all_parts(), {}, 0, progress);
  // The checksums lie between the data. What is free of them goes first, the rest when they are known.
  const std::uint64_t alignment = std::max<std::uint64_t>(route_.alignment, page_size());
  const std::vector<WritePart> interiors = interior_parts(alignment);
  ChecksumCollector collector(*kind);
  run(
      crew, interiors,
      [&](const Piece& piece, const std::byte* bytes) {
        collector.add(layout_.order[piece.owner], piece.offset, bytes, piece.nbytes);
      },
      0, progress);
  add_edges(collector, alignment);
  set_checksums(collector.finish(shard_.specs.size()));
  encode();
  std::uint64_t done = 0;
  for (const WritePart& part : interiors) done += part.nbytes;
  run(crew, without(all_parts(), interiors), {}, done, progress);
}

std::vector<ShareChecksum> ShardSave::write_share(Crew& crew, ByteRange share,
                                                  const std::function<bool(std::uint64_t)>& progress) {
  std::vector<WritePart> mine = interior_parts(shared_alignment());
  for (WritePart& part : mine) {
    const std::uint64_t begin = std::clamp(part.offset, share.begin, share.end);
    const std::uint64_t end = std::clamp(part.offset + part.nbytes, begin, std::max(begin, share.end));
    const bool outside = end <= begin || begin < part.offset || end > part.offset + part.nbytes;
    part = outside ? WritePart{part.offset, 0, part.origin} : cut_part(part, begin, end);
  }
  const auto kind = wanted_checksums();
  ChecksumCollector collector(kind.value_or(ChecksumKind::kCrc32c));
  PieceObserver observe;
  if (kind) {
    observe = [&](const Piece& piece, const std::byte* bytes) {
      collector.add(layout_.order[piece.owner], piece.offset, bytes, piece.nbytes);
    };
  }
  run(crew, mine, observe, 0, progress);
  std::vector<ShareChecksum> found;
  const auto checksums = collector.finish(shard_.specs.size());
  for (std::size_t i = 0; kind && i < mine.size(); ++i) {
    if (mine[i].nbytes == 0) continue;
    found.push_back({layout_.order[i], checksums[layout_.order[i]], mine[i].offset, mine[i].nbytes});
  }
  return found;
}

void ShardSave::write_rest(Crew& crew, std::span<const ShareChecksum> checksums) {
  const std::vector<WritePart> interiors = interior_parts(shared_alignment());
  if (const auto kind = wanted_checksums()) {
    ChecksumCollector collector(*kind);
    std::vector<std::uint64_t> covered(shard_.specs.size());
    for (const ShareChecksum& share : checksums) {
      if (share.tensor >= covered.size()) throw_argument("{}: a checksum of no tensor", shard_.path.native());
      covered[share.tensor] += share.nbytes;
      collector.add_known(share.tensor, share.offset, share.checksum, share.nbytes);
    }
    for (std::size_t i = 0; i < interiors.size(); ++i) {
      if (covered[layout_.order[i]] == interiors[i].nbytes) continue;
      throw_argument("{}: tensor {}: of {} bytes checksums came for {}", shard_.path.native(),
                     in_quotes(shard_.specs[layout_.order[i]].name), interiors[i].nbytes, covered[layout_.order[i]]);
    }
    add_edges(collector, shared_alignment());
    set_checksums(collector.finish(shard_.specs.size()));
    encode();
  }
  run(crew, without(all_parts(), interiors), {}, 0, [](std::uint64_t) { return true; });
}

std::uint64_t ShardSave::fingerprint(const Shard& shard, const SaveOptions& options) {
  const FilePlan plan = encode_layout(options.format, shard.specs, shard.metadata, encode_options(shard, options));
  std::uint32_t first = crc32c(plan.prefix, crc32c(plan.suffix));
  std::uint32_t second = crc32c(std::as_bytes(std::span(plan.offsets)), crc32c(std::as_bytes(std::span(plan.order))));
  for (const Literal& literal : plan.literals) first = crc32c(literal.bytes, first);
  return (std::uint64_t{first} << 32) | second;
}

// The same in every process, whatever its route is.
std::uint64_t ShardSave::shared_alignment() const {
  return std::max<std::uint64_t>(route_.alignment, 4 * kKiB);
}

// Writes `parts` and waits for them. `done` bytes of the file were written before.
void ShardSave::run(Crew& crew, std::span<const WritePart> parts, PieceObserver observe, std::uint64_t done,
                    const std::function<bool(std::uint64_t)>& progress) {
  const auto batch = plan_write(file_, route_, parts, crew.settings().block_size, std::move(observe));
  batch->keep = image_;
  const Stopwatch watch;
  start_writing(crew, batch);
  wait_with_progress(
      *batch, [&](const Progress& now) { return progress(done + now.bytes_done); }, layout_.file_size, watch);
}

// The whole file, by offset.
std::vector<WritePart> ShardSave::all_parts() const {
  std::vector<WritePart> parts = tensor_parts();
  parts.insert(parts.begin(), {0, layout_.prefix.size(), {layout_.prefix.data(), {}}});
  for (const Literal& literal : layout_.literals) {
    parts.push_back({literal.offset, literal.bytes.size(), {literal.bytes.data(), {}}});
  }
  parts.push_back({layout_.file_size - layout_.suffix.size(), layout_.suffix.size(), {layout_.suffix.data(), {}}});
  sort_parts(parts);
  add_zero_parts(parts, layout_.file_size);
  sort_parts(parts);
  return parts;
}

// Of each tensor the part between the first and the last multiple of `alignment`, in the order of FilePlan::order; it
// may be empty.
std::vector<WritePart> ShardSave::interior_parts(std::uint64_t alignment) const {
  std::vector<WritePart> parts = tensor_parts();
  for (WritePart& part : parts) {
    const std::uint64_t begin = align_up(part.offset, alignment);
    const std::uint64_t end = align_down(part.offset + part.nbytes, alignment);
    part = cut_part(part, begin, std::max(begin, end));
  }
  return parts;
}

// The checksums of what interior_parts() leaves out.
void ShardSave::add_edges(ChecksumCollector& collector, std::uint64_t alignment) const {
  std::vector<std::byte> scratch;
  for (const std::uint32_t number : layout_.order) {
    const std::uint64_t offset = layout_.offsets[number];
    const std::uint64_t end = offset + shard_.specs[number].nbytes;
    const std::uint64_t first = align_up(offset, alignment);
    const std::uint64_t last = align_down(end, alignment);
    const auto add = [&](std::uint64_t from, std::uint64_t to) {
      if (from >= to) return;
      const Origin& origin = shard_.origins[number];
      const std::byte* bytes = origin.data == nullptr ? nullptr : origin.data + (from - offset);
      if (bytes == nullptr) {
        scratch.resize(to - from);
        origin.fill(from - offset, scratch);
        bytes = scratch.data();
      }
      collector.add(number, from, bytes, to - from);
    };
    if (first >= last) {
      add(offset, end);
    } else {
      add(offset, first);
      add(last, end);
    }
  }
}

void ShardSave::finish(const std::function<bool()>& keep_going) {
  // Direct writes and small files leave the kernel nothing to do that would be worth watching.
  if (options_.durable && !route_.direct && !small_) sync_watched(file_, keep_going);
  file_.finish(layout_.file_size, options_.durable);
}

void ShardSave::encode() {
  EncodeOptions options = encode_options(shard_, options_);
  options.safetensors_placement = [this](std::span<const std::uint64_t> offsets) {
    if (!placement_) {
      const bool straight = route_.direct && route_.straight;
      placement_ = straight ? choose_placement(shard_, offsets, std::max(route_.memory_alignment, 8u))
                            : safetensors::Placement{};
    }
    return *placement_;
  };
  options.safetensors_empty_metadata = options_.empty_metadata;
  options.checksums = checksums_;
  layout_ = encode_layout(options_.format, shard_.specs, shard_.metadata, options);
}

// By the number of the spec. In metadata they follow the order of the offsets.
void ShardSave::set_checksums(std::vector<std::uint32_t> checksums) {
  if (has_own_checksums(options_.format)) {
    checksums_ = std::move(checksums);
    return;
  }
  std::vector<std::uint32_t> ordered;
  for (const std::uint32_t number : layout_.order) ordered.push_back(checksums[number]);
  shard_.metadata[std::string(kChecksumKey)] = encode_checksums(ordered);
}

}  // namespace penstock
