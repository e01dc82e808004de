// Writing: a laid-out file becomes jobs for a crew; bytes come from tensor memory, of the host or of devices, or from
// functions that produce them.
//
// A block with bytes of a device is fetched into its staging block first, which is pinned then, and written when that
// is done; both go on while the thread works on other blocks. Or the device writes it by itself (GPUDirect Storage).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/file.h"
#include "plan/plan.h"
#include "transfer/batch.h"
#include "transfer/crew.h"
#include "transfer/gds_use.h"
#include "transfer/origin.h"
#include "transfer/read.h"

namespace penstock {

// One part of a file: `nbytes` at `offset`, from an origin.
struct WritePart {
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
  Origin origin;
};

// Where parts are written to, and how.
struct WriteTarget {
  std::string path;
  int fd = -1;  // none: parts are copied to `memory`, and where that is null too they are only observed
  bool direct = false;
  DirectAlignment alignment{1, 1};  // that direct I/O needs
  bool straight = true;             // from the origins' memory where alignment allows; else all passes through staging
  std::byte* memory = nullptr;      // in place of a file: offsets count from here
  bool fresh = false;               // nobody has touched that memory yet
  std::shared_ptr<GdsUse> gds;      // nothing: devices write nothing by themselves
};

struct WriteBatch : Batch {
  WriteTarget target;
  Plan plan;
  std::vector<Origin> origins;  // by the owner of a piece
  // By owner too: the device that it lies on writes whole pages of it by itself. Addresses of its pieces are the
  // device's; those of other origins that have no memory of the host's count from their start.
  std::vector<std::shared_ptr<DeviceFile>> device_files;
  std::atomic<bool> devices_write{true};  // false once one has failed to
  std::uint64_t staging_size = 0;         // bytes of a staging block; what a block of the plan leaves of it is scratch
  PieceObserver observe;             // sees every piece, in the tensor where it has one; its owner is the part's number
  std::shared_ptr<const void> keep;  // what the origins' memory belongs to
};

// Adds parts that fill the holes between `parts` (sorted by offset) and after them, up to `size`, with zeros. Their
// numbers follow.
void add_zero_parts(std::vector<WritePart>& parts, std::uint64_t size);

// Plans the writes of `parts`, which cover the file without a hole. Those that lie together in memory of the host too
// are written as one, unless `observe`, which is told whose each piece is, is to see them. `block_size`: of the crew,
// which has pinned blocks where a part lies on a device.
std::shared_ptr<WriteBatch> plan_write(WriteTarget target, std::span<const WritePart> parts, std::uint64_t block_size,
                                       PieceObserver observe = {});

void start_writing(Crew& crew, const std::shared_ptr<WriteBatch>& batch);

}  // namespace penstock
