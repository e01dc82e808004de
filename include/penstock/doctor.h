// The doctor: which way a load of a checkpoint would take, why, and what would make it faster. Nothing is loaded.
//
// The way is not guessed: it is planned by the code that loads, from what the kernel says at this moment about the
// files, the page cache and this process. What is planned here is what Reader::load with the same options would do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "penstock/export.h"
#include "penstock/options.h"
#include "penstock/reader.h"

namespace PENSTOCK_EXPORT penstock {

// How one file lies on its drive and in the page cache.
struct FileDiagnosis {
  std::filesystem::path path;
  std::uint64_t size = 0;
  std::string format;  // "safetensors", "flashpack", "torch", "torch-legacy"

  std::string filesystem;      // "ext4", "nfs", "overlay", "tmpfs"
  std::string device;          // what is mounted: "/dev/vda"; empty where that is not found
  bool local = false;          // its pages are known to be this machine's own
  bool in_memory = false;      // there is no drive behind it (tmpfs)
  bool virtual_drive = false;  // a hypervisor's

  std::optional<std::uint64_t> read_ahead;  // bytes that the kernel reads ahead of who reads through the page cache
  std::string read_ahead_setting;           // the file where that is set

  bool direct = false;                 // direct I/O works
  std::uint32_t offset_alignment = 0;  // what it needs, in bytes
  std::uint32_t memory_alignment = 0;
  bool alignment_reported = false;  // by statx; else it is an assumption that a read confirmed
  std::string direct_refusal;       // why it doesn't work
  int direct_error = 0;             // the errno behind that, or 0

  std::uint64_t span = 0;                // from the first byte wanted to the last
  std::uint64_t resident_bytes = 0;      // of these, in the page cache
  std::string residency_source;          // who said so: "cachestat", "mincore", "sample", or "nobody"
  std::optional<std::uint64_t> extents;  // pieces on the drive; nothing where the filesystem doesn't say
};

// A load that has not happened.
struct Forecast {
  Stats stats;                      // as the load would report them, but for seconds
  bool mapped = false;              // nothing is read, and no memory taken
  bool may_stage = false;           // some bytes pass through staging blocks, or may
  bool uses_uring = false;          // io_uring works on requests
  bool uses_threads = false;        // threads do; neither: the calling thread itself
  std::string mapping;              // why it would be mapped, or why not
  std::string backend_reason;       // why io_uring, threads or neither
  std::uint64_t bytes_dropped = 0;  // of bytes_buffered, those that would leave the page cache again
};

// What this process may use.
struct Machine {
  std::string kernel;                     // "6.12.0-1-amd64"
  bool uring = false;                     // io_uring works for this process
  int uring_error = 0;                    // the errno with which the kernel refuses it
  std::optional<int> uring_disabled;      // kernel.io_uring_disabled; nothing before Linux 6.6
  bool seccomp = false;                   // a filter of system calls is in force
  std::uint64_t memory_available = 0;     // that can be had without swapping, cgroup limits included
  std::uint64_t memory_limit = 0;         // of the machine or of a cgroup, whichever is less
  bool memory_limited_by_cgroup = false;  // whichever that is
  std::uint64_t locked_memory_limit = 0;  // RLIMIT_MEMLOCK; kUnlimited
  std::uint64_t open_files_limit = 0;     // RLIMIT_NOFILE
  std::uint64_t open_files = 0;           // that this process has open now
  std::string huge_pages;                 // transparent ones: "always", "madvise", "never"; empty: unknown
  std::vector<std::string> environment;   // settings that are in force: "PENSTOCK_THREADS=8"

  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};
};

// The devices that tensors can be loaded to and saved from, as their driver describes them. Asking makes no context, so
// it takes no memory of a device; but it loads the driver, which a child of fork() then can't start anew.
struct Devices {
  std::vector<DeviceInfo> found;
  std::string why_none;            // why nothing was found
  std::string driver;              // its version: "CUDA 12.8"; empty: none can be used
  std::uint64_t pinned_limit = 0;  // memory that copies pass through at most (PENSTOCK_PINNED), of the process
  std::string gds_obstacle;        // why GPUDirect Storage is not used; empty: cuFile will be asked
};

// Something that would make loads faster, or possible.
struct Advice {
  std::string topic;    // for programs: "io_uring", "direct_io", "misaligned", "memory" ...
  std::string problem;  // what is in the way
  std::string remedy;   // what to do
};

struct Diagnosis {
  std::vector<FileDiagnosis> files;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;               // of all tensors, as they are in memory
  std::uint64_t tensors_misaligned = 0;  // their offset is no multiple of their element size: they have to be moved
  std::uint64_t bytes_misaligned = 0;
  std::uint64_t tensors_scattered = 0;  // their elements are apart in the file: gathered one by one
  double open_seconds = 0;              // that reading the headers took

  Forecast now;                         // into fresh memory, with the page cache as it is
  std::optional<Forecast> cold;         // with nothing in the page cache; nothing for files that live there (tmpfs)
  std::optional<Forecast> cold_reused;  // the same, into memory that was used before

  std::uint64_t staging_bytes = 0;      // memory on top of the payload, for a cold load
  bool staging_registered = false;      // io_uring took it as registered buffers
  std::uint64_t open_files_needed = 0;  // by a cold load, those that are open already included

  Machine machine;
  Devices devices;
  std::vector<Advice> advice;  // what matters most first
};

// Throws Error when the checkpoint can't be opened.
Diagnosis diagnose(const std::filesystem::path& path, const LoadOptions& options = {});
Diagnosis diagnose(const Reader& reader, const LoadOptions& options = {});

Machine inspect_machine();
Devices inspect_devices();

// What follows from a diagnosis; diagnose() has asked it already. Pure.
std::vector<Advice> advise(const Diagnosis& diagnosis);

}  // namespace penstock
