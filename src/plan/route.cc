#include "plan/route.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/page.h"
#include "base/tuning.h"

namespace penstock {
namespace {

bool any(std::span<const FileFacts> files, bool FileFacts::*fact) {
  return std::any_of(files.begin(), files.end(), [fact](const FileFacts& file) { return file.*fact; });
}

bool all(std::span<const FileFacts> files, bool FileFacts::*fact) {
  return std::all_of(files.begin(), files.end(), [fact](const FileFacts& file) { return file.*fact; });
}

ReadPath decide_path(CachePolicy cache, const FileFacts& file) {
  if (cache == CachePolicy::kBuffered || cache == CachePolicy::kMap) return ReadPath::kBuffered;
  const bool asks_cache = cache == CachePolicy::kAuto || cache == CachePolicy::kCopy;
  const std::uint64_t resident = asks_cache ? file.resident : 0;
  if (resident > 0 && resident == file.wanted) return ReadPath::kCached;
  if (!file.direct) return ReadPath::kDropBehind;
  return resident > 0 ? ReadPath::kByBlock : ReadPath::kDirect;
}

}  // namespace

MapDecision decide_mapping(const ReadRequest& request, std::span<const FileFacts> files) {
  if (request.cache == CachePolicy::kMap) {
    if (request.has_memory) throw_argument("cache policy mmap: a mapping is the file's memory, and other was given");
    if (request.converts || request.verifies) {
      throw_argument("cache policy mmap: a mapping can be neither converted (dtype) nor verified");
    }
    return {true, MapReason::kMapAsked};
  }
  if (request.cache == CachePolicy::kCopy) return {false, MapReason::kCopyAsked};
  if (request.cache != CachePolicy::kAuto) return {false, MapReason::kReadsAsked};
  if (request.converts || request.verifies) return {false, MapReason::kConverted};
  if (request.landing != Landing::kAuto) return {false, MapReason::kLandingAsked};
  if (request.has_memory) return {false, MapReason::kMemoryGiven};
  std::uint64_t wanted = 0;
  std::uint64_t resident = 0;
  for (const FileFacts& file : files) {
    wanted += file.wanted;
    resident += file.resident;
  }
  if (wanted == 0) return {false, MapReason::kNothingWanted};
  // Tensors that would have to be moved anyway are better read together.
  if (any(files, &FileFacts::has_misaligned)) return {false, MapReason::kMisaligned};
  if (!all(files, &FileFacts::local)) return {false, MapReason::kNotLocal};
  // Who rewrites a mapped file in place takes its bytes away. People do that to torch files all the time.
  if (!all(files, &FileFacts::mappable)) return {false, MapReason::kRewrittenFormat};
  if (any(files, &FileFacts::open_for_writing)) return {false, MapReason::kOpenForWriting};
  if (resident == 0) return {false, MapReason::kNothingCached};
  if (resident == wanted) return {true, MapReason::kAllCached, 100};
  // A mapping takes memory only for what is missing, and that is not cleared first; a copy takes all of it.
  const std::uint64_t percent = resident * 100 / wanted;
  const bool mostly_there = percent >= tuning::kMapFromPercent;
  return {mostly_there, mostly_there ? MapReason::kPartlyCached : MapReason::kMostlyCold, percent};
}

ReadRoute decide_read(const ReadRequest& request, const FileFacts& file, const MemoryFacts& memory,
                      std::uint64_t nbytes, std::uint64_t block_size) {
  const ReadPath path = decide_path(request.cache, file);
  if (memory.on_device && memory.direct_storage && (path == ReadPath::kDirect || path == ReadPath::kByBlock)) {
    return {path, ReadLanding::kInPlace, LandingReason::kDirectStorage, LandingReason::kDevice};
  }
  if (memory.on_device) return {path, ReadLanding::kStaged, LandingReason::kDevice};
  if (request.landing == Landing::kInPlace) return {path, ReadLanding::kInPlace, LandingReason::kInPlaceAsked};
  if (request.landing == Landing::kStaged) return {path, ReadLanding::kStaged, LandingReason::kStagedAsked};
  if (memory.shared_with_device) return {path, ReadLanding::kInPlace, LandingReason::kSharedWithDevice};
  if (nbytes <= tuning::kSmallTransfer) return {path, ReadLanding::kInPlace, LandingReason::kSmall};
  if (memory.reused && !file.on_virtual_drive) return {path, ReadLanding::kInPlace, LandingReason::kReusedMemory};
  // A hypervisor's drive reads slowly into memory that is scattered over small pages, also where that is there already.
  const LandingReason if_staged = memory.reused ? LandingReason::kVirtualDrive : LandingReason::kFreshMemory;
  if (memory.may_have_huge_pages && block_size % kHugePage == 0) {
    return {path, ReadLanding::kByPage, LandingReason::kHugePages, if_staged};
  }
  return {path, ReadLanding::kStaged, if_staged};
}

bool wants_direct(const WriteRequest& request, std::uint64_t nbytes) {
  if (request.method != WriteMethod::kAuto) return request.method == WriteMethod::kDirect;
  return nbytes > tuning::kSmallFile || request.landing != Landing::kAuto;
}

WriteRoute decide_write(const WriteRequest& request, const WriteFacts& facts) {
  if (!wants_direct(request, facts.nbytes)) {
    return {false, true, request.method == WriteMethod::kBuffered ? WriteReason::kBufferedAsked : WriteReason::kSmall};
  }
  if (!facts.direct) return {false, true, WriteReason::kDirectRefused};
  // Straight from scattered small pages a hypervisor's drive writes 1.8 GiB/s where staging blocks of huge pages
  // give 2.8.
  const bool straight = request.landing == Landing::kAuto ? facts.from_image || !facts.on_virtual_drive
                                                          : request.landing == Landing::kInPlace;
  return {true, straight, WriteReason::kDirect};
}

std::string describe(const MapDecision& decision) {
  switch (decision.reason) {
    case MapReason::kMapAsked:
      return "a mapping was asked for";
    case MapReason::kCopyAsked:
      return "a copy was asked for";
    case MapReason::kReadsAsked:
      return "the cache policy asks for reads";
    case MapReason::kConverted:
      return "what is converted or verified has to be read";
    case MapReason::kLandingAsked:
      return "a way to land was asked for";
    case MapReason::kMemoryGiven:
      return "the tensors have memory of their own to land in";
    case MapReason::kNothingWanted:
      return "there is nothing to map";
    case MapReason::kMisaligned:
      return "some tensors are misaligned in the file and have to be moved";
    case MapReason::kNotLocal:
      return "the filesystem is not known to be local";
    case MapReason::kRewrittenFormat:
      return "torch files are often rewritten in place, so they are copied";
    case MapReason::kOpenForWriting:
      return "the file is open for writing, so it is copied";
    case MapReason::kNothingCached:
      return "the page cache holds nothing";
    case MapReason::kMostlyCold:
      return "the page cache holds less than half of it";
    case MapReason::kAllCached:
      return "the page cache holds everything, so it is mapped and not copied";
    case MapReason::kPartlyCached:
      break;
  }
  return fmt::format("the page cache holds {}% of it: the rest is read into it, and nothing is copied",
                     decision.percent);
}

std::string_view describe(LandingReason reason) {
  switch (reason) {
    case LandingReason::kInPlaceAsked:
      return "landing in place was asked for";
    case LandingReason::kStagedAsked:
      return "landing through staging blocks was asked for";
    case LandingReason::kDevice:
      return "bytes pass through pinned memory, out of which the device copies them";
    case LandingReason::kDirectStorage:
      return "the device reads whole pages of the file by itself (GPUDirect Storage)";
    case LandingReason::kSharedWithDevice:
      return "device and host share this memory, so bytes land in place";
    case LandingReason::kSmall:
      return "a small load lands in place";
    case LandingReason::kReusedMemory:
      return "the destination is memory that was used before, so bytes land in place";
    case LandingReason::kHugePages:
      return "bytes land in place where the destination has huge pages, or they come quickly; elsewhere threads copy "
             "them";
    case LandingReason::kVirtualDrive:
      return "the drive is a virtual one, which reads faster into a few large pages";
    case LandingReason::kFreshMemory:
      break;
  }
  return "the destination is fresh memory, so threads copy bytes there and take its page faults in parallel";
}

std::string_view describe(WriteReason reason) {
  switch (reason) {
    case WriteReason::kDirect:
      return "the filesystem takes direct writes";
    case WriteReason::kSmall:
      return "a small file is quickest through the page cache";
    case WriteReason::kBufferedAsked:
      return "writes through the page cache were asked for";
    case WriteReason::kDirectRefused:
      break;
  }
  return "the filesystem refuses direct writes";
}

}  // namespace penstock
