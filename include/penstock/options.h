// Options of loads and saves, and the statistics they report. Each struct separates what changes the result from what
// changes only the speed; every field has a default, and the defaults are what penstock recommends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/device.h"
#include "penstock/export.h"
#include "penstock/memory.h"
#include "penstock/tensor.h"

namespace PENSTOCK_EXPORT penstock {

// Given to a progress callback, on the thread that called load or commit, about thirty times a second and once at the
// end.
struct Progress {
  std::uint64_t bytes_done = 0;
  std::uint64_t bytes_total = 0;
  double seconds = 0;
};

// Returning false stops the work: it throws Error(kCancelled) within some milliseconds and leaves nothing behind.
using ProgressFunction = std::function<bool(const Progress&)>;

enum class Backend { kAuto, kUring, kThreads };

// How bytes are moved. 0 and kAuto mean: choose by file, destination and machine. Where a field is left at that, the
// environment is asked first: PENSTOCK_BACKEND (uring, threads), PENSTOCK_BLOCK_SIZE (as parse_size takes it),
// PENSTOCK_QUEUE_DEPTH, PENSTOCK_THREADS, PENSTOCK_MEMORY_BUDGET. `penstock bench --settings` tries others on a drive.
struct IoOptions {
  Backend backend = Backend::kAuto;
  std::size_t block_size = 0;  // bytes per request
  unsigned queue_depth = 0;    // requests in flight, over all threads
  unsigned threads = 0;        // threads that copy
  // Bytes of the host's memory that a load or save may take: tensors that a load makes, what a stream reads ahead,
  // snapshots, the blocks that bytes pass through. 0: what the machine and the cgroups of the process have left when it
  // begins. Blocks and read-ahead shrink to fit, a snapshot that doesn't fit isn't taken; a load that doesn't fit is an
  // Error(kMemory) before anything is read. Mapped tensors take none.
  std::uint64_t memory_budget = 0;
};

// Which bytes come from where.
//   kAuto      a safetensors or FlashPack file on a local filesystem, of which the page cache holds at least half and
//              that nobody has open for writing: the rest is read into the cache and all is mapped. Any other file, and
//              every torch file: as kCopy
//   kCopy      what the page cache holds is copied, the rest is read directly and leaves no page cache behind. Never
//              mapped, so nothing that happens to the file later reaches the tensors
//   kDirect    everything is read past the page cache
//   kBuffered  everything is read through the page cache
//   kMap       the file is mapped privately; bytes are read when they are touched
//
// A mapping is as good as its file: who truncates that, or rewrites it in place, takes the tensors' bytes away, and the
// next access is a SIGBUS. Writers of penstock, safetensors and flashpack's commands replace files, which is harmless;
// torch.save, cp and open(path, "w") rewrite them.
enum class CachePolicy { kAuto, kCopy, kDirect, kBuffered, kMap };

// How direct reads land: straight in their final place, or in a small ring of hot blocks that threads copy out of. For
// saves the same in the other direction. kAuto asks the environment (PENSTOCK_LANDING: in_place, staged) and then
// decides by the drive, by whether the memory was touched before, and, for memory of a pool, by whether it comes in
// huge pages: loads of 256 MiB and more land there in place.
enum class Landing { kAuto, kInPlace, kStaged };

// Whether bytes may move between drive and device without the host (GPUDirect Storage). kAuto asks the environment
// (PENSTOCK_GDS: on, off) and then uses it where the system has all that it takes; kOn insists on asking cuFile, also
// for its compatibility mode. Where it can't be used bytes pass through pinned memory, and Stats::gds says why.
enum class DirectStorage { kAuto, kOn, kOff };

// What loads check the bytes of files against, as they land.
//   kOff     nothing
//   kAny     per file the first that is there: a seal beside it (penstock/seal.h), checksums that it carries, the name
//            of its blob in the Hugging Face cache; an error where there is none
//   kIfAny   the same, and no error where there is none
//   kSeal    its seal: every bit of the file, or of the wanted tensors
//   kStored  the checksums that it carries: a CRC-32C of every tensor, or a CRC-32 of every record of a torch zip
//   kSha256  a SHA-256 of the whole file, which is read once more for it: the name of its blob, or of its seal
enum class Verify { kOff, kAny, kIfAny, kSeal, kStored, kSha256 };

// Indices of one dimension: begin, begin + step, ... before `end`.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t step = 1;
};

// A part of a tensor: of each leading dimension the indices that are wanted, as ranges that ascend and don't overlap.
// What they pick follows each other. No range: all of the dimension; so are dimensions that are missing.
using Part = std::vector<std::vector<Slice>>;

struct LoadOptions {
  // What is loaded.
  std::function<bool(const TensorInfo&)> select;  // nothing: every tensor
  // Of tensors that are named here only this part, as a rank of several wants it: nothing else of them is read, but for
  // what lies between pieces that are nearer than a page. Not with `verify`: checksums are of whole tensors.
  std::map<std::string, Part, std::less<>> parts;
  std::optional<DType> dtype;  // convert floating tensors on the way
  Verify verify = Verify::kOff;

  // How fast.
  CachePolicy cache = CachePolicy::kAuto;
  Landing landing = Landing::kAuto;
  IoOptions io;
  std::shared_ptr<MemoryPool> pool;  // nothing: MemoryPool::process_default()
  // Where the tensors' memory comes from, in place of the pool: once per file, or batch of a stream. Memory of a device
  // is filled through pinned blocks, or by cuFile; of the host as any other.
  Allocator allocate;
  // load_into() memory of devices: what is queued here comes first.
  std::vector<DeviceStream> streams;
  DirectStorage gds = DirectStorage::kAuto;
  // stream(): how far loading may run ahead of its consumer, in bytes; IoOptions::memory_budget may make it less.
  std::uint64_t max_buffer = std::uint64_t{256} << 20;

  ProgressFunction progress;

  // load(): called once, on the thread that called it, with the tensors that it will return. Their bytes may still be
  // on the way: what needs only names, shapes and addresses is done here at no cost of its own. What it throws ends the
  // load and is thrown by it.
  std::function<void(std::span<const Tensor>)> placed;
};

// How the bytes of a new file reach the drive.
enum class WriteMethod { kAuto, kDirect, kBuffered };

// What to do with tensors whose memory overlaps.
//   kRefuse       an error that names them
//   kDeduplicate  tensors over exactly the same bytes are stored once, the other names go to the metadata as
//                 "other name" -> "stored name"; a partial overlap is still refused
//   kDuplicate    each is written in full
enum class SharedTensors { kRefuse, kDeduplicate, kDuplicate };

// What to do with values of a torch checkpoint that are more than data: objects of other classes, functions.
//   kRefuse  such a checkpoint is not loaded as a tree
//   kKeep    they are named, and stand in the tree as opaque values
enum class OpaqueValues { kRefuse, kKeep };

// What a FlashPack file leaves open. See docs/formats/flashpack.md.
struct FlashPackOptions {
  std::uint64_t align_bytes = 128;  // of every tensor
  bool keep_order = false;          // tensors in the order they were added; else those with the most elements first
  bool align_large = false;         // tensors of at least 256 KiB start on a multiple of 4096 bytes

  friend bool operator==(const FlashPackOptions&, const FlashPackOptions&) = default;
};

// What a torch file leaves open. See docs/formats/torch.md.
struct TorchOptions {
  std::uint64_t alignment = 0;  // of a zip's records; 0: 4096 for large tensors, else 64, which is torch's own default
  bool checksums = true;  // the true CRC-32 of every record of a zip; without, zeros, as torch can be told to write
  // The pickle of any object, made elsewhere, whose storages are what is added; nothing: a flat dict of tensors by
  // name.
  std::optional<std::string> pickle;
  // With `pickle`, for a legacy file: the pickles before it (magic number, version, sizes) and behind it (the sorted
  // list of keys); nothing: those of protocol 2.
  std::optional<std::pair<std::string, std::string>> around_pickle;

  friend bool operator==(const TorchOptions&, const TorchOptions&) = default;
};

struct SaveOptions {
  // What is written.
  std::string format;          // "safetensors", "flashpack", "torch", "torch-legacy"; empty: by the suffix of the path
  std::optional<DType> dtype;  // convert floating tensors while they are written
  FlashPackOptions flashpack;  // changed for another format: refused
  TorchOptions torch;          // the same
  Metadata metadata;
  bool empty_metadata = false;       // safetensors: an empty object where there is no metadata, else nothing
  std::uint64_t max_shard_size = 0;  // 0: one file; else shards of at most this many bytes, and an index
  bool checksums = false;            // store a CRC-32C of every tensor in the metadata ("penstock.crc32c")
  SharedTensors shared = SharedTensors::kRefuse;

  // How safe. The file always appears whole, by a rename; without `durable` it may be lost in a power cut.
  bool durable = true;

  // How fast.
  WriteMethod method = WriteMethod::kAuto;
  Landing landing = Landing::kAuto;  // kInPlace: straight from tensor memory; kStaged: through staging blocks
  IoOptions io;
  std::vector<DeviceStream> streams;  // tensors of devices are read after what is queued here when the save begins
  DirectStorage gds = DirectStorage::kAuto;

  ProgressFunction progress;
};

// A step of a save and how long it took: "build_index", "reserve", "snapshot" (in the background), "write",
// "sync", "rename".
struct Phase {
  std::string name;
  double seconds = 0;
};

// What a load or save did.
struct Stats {
  std::uint64_t bytes = 0;           // payload moved or mapped
  std::uint64_t bytes_direct = 0;    // moved past the page cache
  std::uint64_t bytes_buffered = 0;  // copied from or into the page cache
  std::uint64_t bytes_mapped = 0;    // mapped, not copied
  std::uint64_t bytes_copied = 0;    // of the direct ones, those that passed through a staging block
  std::uint64_t bytes_on_drive = 0;  // bytes that the requests covered, alignment and gaps included
  std::uint64_t requests = 0;
  std::uint64_t resumed = 0;  // requests that came back short or interrupted and were continued
  std::uint64_t tensors = 0;
  std::uint64_t tensors_moved = 0;  // misaligned in the file, moved to an aligned place
  double seconds = 0;
  double sync_seconds = 0;  // of these, waiting for fsync (saves)
  std::string path;         // "mapped", "direct", "buffered" or "mixed" (more than 1% each)
  std::string
      landing;  // "in place", "staged", "mixed", "copied", "mapped" (loads); "straight", "staged", "mixed" (saves)
  std::string backend;  // "uring", "threads" or "inline"
  std::size_t block_size = 0;
  unsigned queue_depth = 0;
  unsigned threads = 0;
  std::string reason;   // one sentence: why this path was chosen
  std::string device;   // "cuda:0 (NVIDIA H100)", several with commas; empty: host memory alone
  std::string pinning;  // "registered", "allocated", or "unpinned: " and why; empty where nothing was staged for one
  std::string gds;      // "used", or why cuFile was not; empty without a device
  std::uint64_t bytes_gds = 0;  // moved by cuFile, of the direct ones
  std::vector<Phase> phases;    // of a save, in their order
};

}  // namespace penstock
