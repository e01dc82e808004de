// The thresholds that decide how bytes move, in one place, each with what was measured. docs/tuning.md has the tables.
//
// Figures are of 2 GiB on a virtual machine of 2 cores with a virtio drive (docs/benchmarks.md), as medians or ranges
// of interleaved rounds. Where one says "not measured", nobody has looked: change it freely.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace penstock::tuning {

// ---- Requests -------------------------------------------------------------------------------------------------------

// Bytes per request. Cold loads: 2 MiB x 16 4.0 GiB/s, 4 MiB x 8 2.6, 1 MiB x 16 3.9. A huge page is as large.
inline constexpr std::uint64_t kBlockSize = 2 * kMiB;
// Small transfers have smaller blocks, a 128th of them: staging is memory that must be there first. 16 MiB in a fresh
// process: saves 22 - 105 ms with 2 MiB, 22 - 28 with 256 KiB; cold loads 20 - 52 and 13 - 17.
inline constexpr std::uint64_t kBlocksPerTransfer = 128;
inline constexpr std::uint64_t kLeastBlock = 256 * kKiB;

// Requests in flight. Loads: 16 2.21 GiB/s, 8 2.00 (12 rounds). Saves: 8 2.82, 16 2.74, 32 2.78 (20 rounds).
inline constexpr unsigned kReadDepth = 16;
inline constexpr unsigned kWriteDepth = 8;

// Threads that copy, where nobody says how many. 4 on 2 cores gave 3.7 GiB/s where 2 gave 4.0.
inline constexpr unsigned kMostDefaultThreads = 4;

// Up to here one thread moves everything, with one request at a time and no engine, and it lands in place. Where
// exactly that stops to pay was not measured.
inline constexpr std::uint64_t kSmallTransfer = 4 * kMiB;
inline constexpr std::uint64_t kSmallBlock = 1 * kMiB;

// Staging memory on top of the payload; the rest of the promised 64 MiB is for bookkeeping.
inline constexpr std::uint64_t kMostStaging = 48 * kMiB;

// The part of a memory budget that is for staging: one over this. From 384 MiB on nothing changes.
inline constexpr std::uint64_t kStagingPart = 8;
// Blocks of staging that is small because of that are small too: for so many requests in flight. Not measured.
inline constexpr std::uint64_t kLeastRequests = 8;
// Less than this is moved without a look at how much memory is left, which takes as long as reading 1 MiB.
inline constexpr std::uint64_t kSmallestBudgeted = 32 * kMiB;

// What may be asked for. Not measured: bounds against mistakes.
inline constexpr std::uint64_t kSmallestBlock = 64 * kKiB;
inline constexpr std::uint64_t kLargestBlock = 64 * kMiB;
inline constexpr unsigned kDeepestQueue = 1024;
inline constexpr unsigned kMostThreads = 256;

// ---- Planning -------------------------------------------------------------------------------------------------------

// Unwanted bytes that are read to save a request. Not measured.
inline constexpr std::uint64_t kLargestGap = 128 * kKiB;
// Straight moves shorter than this are not worth a request of their own. Not measured.
inline constexpr std::uint64_t kSmallestStraightRead = 64 * kKiB;
inline constexpr std::uint64_t kSmallestStraightWrite = 256 * kKiB;
// Runs of tensors from here on start at a page of memory, and of a huge page; smaller ones would waste too much.
inline constexpr std::uint64_t kPageAlignedRun = 256 * kKiB;
inline constexpr std::uint64_t kHugePageAlignedRun = 8 * kMiB;
// The same between pieces of parts of tensors. What one rank leaves out another one reads: bytes are dear, and a page
// is what a drive reads at least.
inline constexpr std::uint64_t kLargestPartGap = 4 * kKiB - 1;
// Runs of a slice that are planned at a time: bounds the planner's memory (56 bytes each).
inline constexpr std::size_t kMostRuns = 100'000;

// ---- The page cache -------------------------------------------------------------------------------------------------

// A file of which the cache holds this share is completed there and mapped: 0.46 CPU s for half of 2 GiB and no memory
// of its own, where copying that half and reading the other takes 1.03 and 2 GiB (758 - 878 against 677 - 762 ms).
inline constexpr std::uint64_t kMapFromPercent = 50;
// Missing pages are asked for so far ahead of their use, and mapped chunk by chunk: a failed read is an error there.
inline constexpr std::uint64_t kMapChunk = 8 * kMiB;
inline constexpr std::size_t kMapChunksAhead = 16;
// Of more than this at once the kernel leaves out the rest (its read-ahead, or the drive's largest request).
inline constexpr std::uint64_t kPrefetchStep = 512 * kKiB;
// Cached slices from here on are mapped, smaller ones copied with one read. Not measured.
inline constexpr std::uint64_t kSmallestMappedSlice = 64 * kKiB;

// Cold slices up to here that follow each other are read together, a window of the file at a time (see
// api/load/slice_windows.h): 1353 tensors of 0.3 MiB, two threads, 1.05 - 1.28 s one by one, 0.61 - 0.89 as one load.
inline constexpr std::uint64_t kLargestWindowedSlice = 2 * kMiB;
inline constexpr std::uint64_t kFirstSliceWindow = 2 * kMiB;
inline constexpr std::uint64_t kLargestSliceWindow = 8 * kMiB;
inline constexpr std::uint64_t kMostSliceWindows = 32 * kMiB;  // of one file
// Slices of a cold file are mapped where less than this would be left beside them: 2 GiB of them in a cgroup of 700
// MiB, which safetensors maps, were killed when they had taken the last of it. How much is enough was not measured.
inline constexpr std::uint64_t kRoomBesideSlices = 256 * kMiB;
// What may lie between slices of a row, as several threads take them out of order, and rows that are remembered.
inline constexpr std::uint64_t kSliceGap = 4 * kMiB;
inline constexpr std::size_t kSliceRows = 16;

// ---- Memory ---------------------------------------------------------------------------------------------------------

// Below this memory comes from the heap: a lazy read of one small tensor took 36 us with a mapping of its own, and 12.
inline constexpr std::uint64_t kSmallestMapping = 128 * kKiB;
// Released memory that the pool keeps at most.
inline constexpr std::uint64_t kMostKept = 4 * kGiB;
// A kept arena serves a request that leaves no more than this, and no more than a quarter of it, unused.
inline constexpr std::uint64_t kMostWaste = 16 * kMiB;
// Memory between these sizes is asked for with some room, so that it fits what is nearly as large later: a stream of
// 2 GiB in tensors of 32 MiB kept 288 MiB of memory that nobody took again, and 34 MiB so.
inline constexpr std::uint64_t kSmallestRoomy = kMiB;
inline constexpr std::uint64_t kLargestRoomy = 256 * kMiB;
// Memory from here on may come in huge pages: 0.14 s for 2 GiB where they are at hand. The bound was not measured.
inline constexpr std::uint64_t kSmallestHugeArena = 16 * kMiB;
// MADV_POPULATE_WRITE replaces 512 faults per 2 MiB by one call: 1.35 -> 1.0 CPU s per cold load. Below this a call
// costs more.
inline constexpr std::uint64_t kSmallestPopulate = 64 * kKiB;
// A huge page that took longer is a slow one: of 2,917 timed, 2,862 took less than 0.5 ms and 55 took 4 to 8; 512 small
// pages take 0.6 to 0.9. Sleeping (a kernel that compacts memory) counts from 8 ms on: it takes no processor time.
inline constexpr double kSlowHugePageSeconds = 1e-3;
inline constexpr double kSlowHugePageWait = 8e-3;
// One slow page is paid for by 8 quick ones, or by having left 256 alone. By reckoning, where all are slow, 4 of 1024
// cost 20 ms. (With 64 in place of 256 cold loads took 1151 ms, and 1041 before; with 256 they took 1205 and 1198.)
inline constexpr unsigned kPagesPerSlowPage = 256;
inline constexpr unsigned kQuickPagesPerSlowPage = 8;

// ---- Saving ---------------------------------------------------------------------------------------------------------

// Up to here a file goes through the page cache, with no question to the filesystem: 0.53 ms durable where it took
// 0.75.
inline constexpr std::uint64_t kSmallFile = 256 * kKiB;
// Closing a file that frees as much is left to a thread: a rename over 2 GiB took 0.29 - 0.37 s where freed blocks are
// discarded, and saves of 2 GiB over themselves 1.04 s in place of 0.73.
inline constexpr std::uint64_t kSlowToFree = 128 * kMiB;
// Snapshots are copied in pieces of this size. Not measured apart from the block size.
inline constexpr std::uint64_t kSnapshotStep = 2 * kMiB;
// A file that grows reserves space ahead, in steps that grow with it: each waits for the writes under way. Only where
// the drive has four times as much free.
inline constexpr std::uint64_t kFirstReservation = 64 * kMiB;
inline constexpr std::uint64_t kLargestReservation = 1 * kGiB;
inline constexpr std::uint64_t kFreePerReservation = 4;

// ---- Devices --------------------------------------------------------------------------------------------------------

// Pinned memory of the process, and how it is used: 4 threads with 4 reads and 2 copies in flight each. By the model of
// bench/pipeline.py that carries drives of 28 GB/s; docs/gpu.md has its curves.
inline constexpr std::uint64_t kPinnedBytes = 48 * kMiB;
inline constexpr std::uint64_t kDeviceBlock = 2 * kMiB;
inline constexpr unsigned kDeviceDepth = 24;
// What a device moves by itself, with cuFile, whose calls wait: 8 MiB by each of 8 threads. InstantTensor reads so with
// 32 threads, kvikio with 4 MiB tasks; 8 to 16 threads are enough by the model. Never measured on hardware.
inline constexpr std::uint64_t kGdsBlock = 8 * kMiB;
inline constexpr unsigned kGdsThreads = 8;
// Of the file, and of what is moved: what cuFile moves without a block of its own in between.
inline constexpr std::uint64_t kGdsAlignment = 4 * kKiB;
// Starting a copy takes about as long as moving so many bytes (2 us at 16 GB/s), so smaller gaps are fetched along. By
// reckoning.
inline constexpr std::uint64_t kBytesPerCopy = 32 * kKiB;
// A snapshot on the device leaves as much free as it takes.
inline constexpr std::uint64_t kFreePerDeviceSnapshot = 2;

// ---- Watching -------------------------------------------------------------------------------------------------------

// Between two calls of a progress function: what a terminal shows as motion.
inline constexpr double kProgressSeconds = 0.03;

}  // namespace penstock::tuning
