// Which way a load or a save goes: from facts about files, drive and memory to a route. Pure.
//
// This is the one place that decides. Loads, streams, slices and saves gather the facts once per file and ask; the
// doctor asks with other facts ("and if nothing were cached?"). Enums inside, words at the edge: describe().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "penstock/options.h"

namespace penstock {

// ---- Reading --------------------------------------------------------------------------------------------------------

// What the caller asked for, the environment included.
struct ReadRequest {
  CachePolicy cache = CachePolicy::kAuto;
  Landing landing = Landing::kAuto;
  bool converts = false;    // LoadOptions::dtype
  bool verifies = false;    // LoadOptions::verify
  bool has_memory = false;  // LoadOptions::allocate
};

// One file, and what is wanted of it. Facts that a decision does not reach need not be gathered: see facts.h.
struct FileFacts {
  std::uint64_t wanted = 0;       // bytes of the stretches that hold what is wanted
  std::uint64_t resident = 0;     // of these, in the page cache
  bool mappable = false;          // its format is one that people replace and don't rewrite
  bool open_for_writing = false;  // somebody may be about to rewrite it all the same
  bool local = false;             // its pages are known to be this machine's own
  bool has_misaligned = false;    // some wanted tensors have to be moved to be used
  bool direct = false;            // direct I/O works
  bool on_virtual_drive = false;  // a hypervisor's
};

// Where bytes go.
struct MemoryFacts {
  bool reused = false;  // touched before
  bool may_have_huge_pages = false;
  bool on_device = false;
  bool shared_with_device = false;  // managed memory and such, which the host may use too
  bool direct_storage = false;      // of a device, which can read this file by itself
};

// Why a load is mapped, or why not. In the order in which the questions are asked.
enum class MapReason : std::uint8_t {
  kMapAsked,
  kCopyAsked,
  kReadsAsked,
  kConverted,
  kLandingAsked,
  kMemoryGiven,
  kNothingWanted,
  kMisaligned,
  kNotLocal,
  kRewrittenFormat,
  kOpenForWriting,
  kNothingCached,
  kMostlyCold,
  kAllCached,
  kPartlyCached,
};

struct MapDecision {
  bool map = false;
  MapReason reason = MapReason::kMapAsked;
  std::uint64_t percent = 0;  // that the page cache holds
};

// Files of one load are judged together. Throws Error(kArgument) where a mapping is asked for and something that it
// can't do.
MapDecision decide_mapping(const ReadRequest& request, std::span<const FileFacts> files);

// How the bytes of one file that is not mapped come in.
enum class ReadPath : std::uint8_t {
  kDirect,      // past the page cache
  kCached,      // copied out of the page cache, which holds all of it
  kByBlock,     // block by block one or the other
  kBuffered,    // through the page cache, because that was asked for
  kDropBehind,  // through the page cache and out of it again: direct I/O is refused
};

// How direct reads land.
enum class ReadLanding : std::uint8_t {
  kInPlace,  // straight in their final place, where alignment allows
  kStaged,   // in staging blocks, which are copied out
  kByPage,   // in place on huge pages of the destination, as far as it has them; else staged
};

enum class LandingReason : std::uint8_t {
  kInPlaceAsked,
  kStagedAsked,
  kDevice,
  kDirectStorage,
  kSharedWithDevice,
  kSmall,
  kReusedMemory,
  kHugePages,
  kVirtualDrive,
  kFreshMemory,
};

struct ReadRoute {
  ReadPath path = ReadPath::kDirect;
  ReadLanding landing = ReadLanding::kStaged;
  LandingReason reason = LandingReason::kFreshMemory;
  LandingReason if_staged = LandingReason::kFreshMemory;  // where no block can go to its place
};

// `nbytes`: of the whole load.
ReadRoute decide_read(const ReadRequest& request, const FileFacts& file, const MemoryFacts& memory,
                      std::uint64_t nbytes, std::uint64_t block_size);

// ---- Writing --------------------------------------------------------------------------------------------------------

struct WriteRequest {
  WriteMethod method = WriteMethod::kAuto;
  Landing landing = Landing::kAuto;
};

struct WriteFacts {
  std::uint64_t nbytes = 0;       // of all tensors of the file
  bool direct = false;            // direct I/O works
  bool on_virtual_drive = false;  // a hypervisor's
  bool from_image = false;        // the file lies in memory as a whole (a snapshot), in large stretches
};

enum class WriteReason : std::uint8_t { kDirect, kSmall, kBufferedAsked, kDirectRefused };

struct WriteRoute {
  bool direct = false;
  bool straight = false;  // from the tensors' memory where alignment allows; else all passes through staging blocks
  WriteReason reason = WriteReason::kDirectRefused;
};

// Whether the filesystem is worth asking for direct I/O.
bool wants_direct(const WriteRequest& request, std::uint64_t nbytes);
WriteRoute decide_write(const WriteRequest& request, const WriteFacts& facts);

// ---- Words ----------------------------------------------------------------------------------------------------------

// One sentence without a full stop, for Stats::reason and the doctor.
std::string describe(const MapDecision& decision);
std::string_view describe(LandingReason reason);
std::string_view describe(WriteReason reason);

}  // namespace penstock
