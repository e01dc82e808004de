// advise(): what follows from a diagnosis. Each function looks for one kind of trouble.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "api/doctor/doctor.h"
#include "base/bytes.h"
#include "base/error.h"
#include "format/detect.h"
#include "penstock/size.h"

namespace penstock {
namespace {

// Pieces that are smaller than half a request, and enough of them to matter.
constexpr std::uint64_t kSmallExtent = 1 * kMiB;
constexpr std::uint64_t kManyExtents = 64;
// A read-ahead that holds up a drive, and so much to read through the page cache that it is noticed.
constexpr std::uint64_t kShortReadAhead = 512 * kKiB;
constexpr std::uint64_t kGoodReadAhead = 8 * kMiB;
constexpr std::uint64_t kMuchToRead = 64 * kMiB;
// From here on it is noticed that a pickle has to be interpreted.
constexpr double kSlowOpening = 0.1;

using Advices = std::vector<Advice>;

// "1 tensor", "7 tensors".
std::string count_of(std::uint64_t count, std::string_view thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

std::uint64_t percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : std::max<std::uint64_t>(1, part * 100 / whole);
}

// What to name in a command: the file, or "DIR" where there are several.
std::string source_of(const Diagnosis& diagnosis) {
  if (diagnosis.files.empty()) return "FILE";
  const auto& path = diagnosis.files.front().path;
  return diagnosis.files.size() == 1 ? path.string() : path.parent_path().string() + "/";
}

// What a cold load does, or where there is none, any.
const Forecast& coldest(const Diagnosis& diagnosis) {
  return diagnosis.cold ? *diagnosis.cold : diagnosis.now;
}

bool is_set(const Machine& machine, std::string_view variable) {
  return std::any_of(machine.environment.begin(), machine.environment.end(),
                     [&](const std::string& setting) { return setting.starts_with(std::string(variable) + "="); });
}

void check_memory(const Diagnosis& diagnosis, Advices& advice) {
  const Machine& machine = diagnosis.machine;
  if (diagnosis.bytes + diagnosis.staging_bytes <= machine.memory_available) return;
  if (diagnosis.now.mapped) return;  // the page cache's memory is all it needs, and can be taken back
  advice.push_back({"memory",
                    fmt::format("the payload of {} exceeds the {} of memory that {} available: a load is refused",
                                format_size(diagnosis.bytes), format_size(machine.memory_available),
                                machine.memory_limited_by_cgroup ? "this process's cgroup leaves" : "are"),
                    "load a part (select), or one tensor after the other (stream)"});
}

void check_open_files(const Diagnosis& diagnosis, Advices& advice) {
  const std::uint64_t limit = diagnosis.machine.open_files_limit;
  if (diagnosis.open_files_needed <= limit) return;
  advice.push_back(
      {"open_files",
       fmt::format("a load of {} needs {} open files, and {} are allowed: what can't be opened a second time is read "
                   "through the page cache",
                   count_of(diagnosis.files.size(), "file"), diagnosis.open_files_needed, limit),
       fmt::format("ulimit -n {}", align_up(diagnosis.open_files_needed, 1024))});
}

void check_direct(const Diagnosis& diagnosis, Advices& advice) {
  std::set<std::string> told;
  for (const FileDiagnosis& file : diagnosis.files) {
    if (file.direct || file.in_memory || ran_out_of_files(file) || !told.insert(file.filesystem).second) continue;
    advice.push_back({"direct_io",
                      fmt::format("{} refuses direct I/O ({}), so bytes are copied through the page cache",
                                  file.filesystem, file.direct_refusal),
                      "keep the files on a filesystem that has it, such as ext4, xfs or btrfs"});
  }
}

void check_remote(const Diagnosis& diagnosis, Advices& advice) {
  std::set<std::string> told;
  for (const FileDiagnosis& file : diagnosis.files) {
    if (file.local || !told.insert(file.filesystem).second) continue;
    advice.push_back(
        {"remote",
         fmt::format("{} is not known to keep its pages on this machine, so what the page cache holds is copied "
                     "and never mapped",
                     file.filesystem),
         "copy files that are loaded often to a local drive"});
  }
}

Advice uring_advice(const Machine& machine) {
  const int setting = machine.uring_disabled.value_or(0);
  if (machine.uring_error == EPERM && setting != 0) {
    return {"io_uring",
            fmt::format("io_uring is disabled by kernel.io_uring_disabled={}{}, so threads are used", setting,
                        setting == 1 ? " for processes without privileges" : ""),
            "sysctl kernel.io_uring_disabled=0, as root"};
  }
  if ((machine.uring_error == EPERM || machine.uring_error == ENOSYS) && machine.seccomp) {
    return {"io_uring", "a seccomp filter refuses io_uring, as containers often have one, so threads are used",
            "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile"};
  }
  if (machine.uring_error == ENOSYS || machine.uring_error == EOPNOTSUPP) {
    return {"io_uring",
            fmt::format("Linux {} has no io_uring that can read files, so threads are used", machine.kernel),
            "Linux 5.6 or later"};
  }
  if (machine.uring_error == ENOMEM) {
    return {"io_uring", "io_uring gets no memory for its rings, so threads are used",
            "raise the limit of locked memory (ulimit -l)"};
  }
  return {"io_uring",
          fmt::format("the kernel refuses io_uring ({}), so threads are used", errno_text(machine.uring_error)),
          "see what the process is denied: limits, seccomp, security modules"};
}

void check_uring(const Diagnosis& diagnosis, Advices& advice) {
  const Forecast& forecast = coldest(diagnosis);
  if (!forecast.uses_threads || forecast.stats.bytes_direct == 0) return;
  if (!diagnosis.machine.uring) return advice.push_back(uring_advice(diagnosis.machine));
  const bool by_environment = is_set(diagnosis.machine, "PENSTOCK_BACKEND");
  advice.push_back({"io_uring", fmt::format("{}, though io_uring works here", forecast.backend_reason),
                    by_environment ? "unset PENSTOCK_BACKEND" : "leave the backend open (auto)"});
}

void check_locked_memory(const Diagnosis& diagnosis, Advices& advice) {
  const Forecast& forecast = coldest(diagnosis);
  if (!forecast.uses_uring || diagnosis.staging_registered || !forecast.may_stage) return;
  const std::uint64_t limit = diagnosis.machine.locked_memory_limit;
  if (limit == Machine::kUnlimited) return;
  advice.push_back(
      {"locked_memory",
       fmt::format("RLIMIT_MEMLOCK is {}: the {} of staging blocks can't be registered with io_uring, and every "
                   "request pins its pages anew",
                   format_size(limit), format_size(diagnosis.staging_bytes)),
       fmt::format("ulimit -l {}", align_up(diagnosis.staging_bytes, 64 * kMiB) / kKiB)});
}

void check_huge_pages(const Diagnosis& diagnosis, Advices& advice) {
  if (diagnosis.machine.huge_pages != "never" || coldest(diagnosis).stats.bytes_copied == 0) return;
  if (!coldest(diagnosis).uses_uring && !coldest(diagnosis).uses_threads)
    return;  // what is read so has no use for them
  advice.push_back(
      {"huge_pages", "transparent huge pages are off, so each request is scattered over hundreds of small pages",
       "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root (or ask who turned them off for "
       "this process)"});
}

void check_layout(const Diagnosis& diagnosis, Advices& advice) {
  const std::string convert = fmt::format("penstock convert {} NEW.safetensors", source_of(diagnosis));
  if (diagnosis.tensors_misaligned > 0) {
    advice.push_back({"misaligned",
                      fmt::format("{}% of the tensors ({}, {}) are misaligned: they are moved, and nothing is mapped, "
                                  "whatever the page cache holds",
                                  percent(diagnosis.tensors_misaligned, diagnosis.tensors),
                                  diagnosis.tensors_misaligned, format_size(diagnosis.bytes_misaligned)),
                      convert + " aligns them"});
  }
  if (diagnosis.tensors_scattered > 0) {
    advice.push_back(
        {"scattered",
         fmt::format("{} of {} are views whose elements are apart in the file: each is read and gathered by itself",
                     diagnosis.tensors_scattered, count_of(diagnosis.tensors, "tensor")),
         convert + " writes them in one piece"});
  }
}

void check_pickle(const Diagnosis& diagnosis, Advices& advice) {
  const bool is_torch = std::any_of(diagnosis.files.begin(), diagnosis.files.end(),
                                    [](const FileDiagnosis& file) { return has_pickle(file.format); });
  if (!is_torch || diagnosis.open_seconds < kSlowOpening) return;
  advice.push_back(
      {"pickle", fmt::format("interpreting the pickle took {:.2f} s, before every load", diagnosis.open_seconds),
       fmt::format("penstock convert {} NEW.safetensors: its header is read faster", source_of(diagnosis))});
}

// What a mapping lacks is asked for by penstock itself, and does not depend on it.
void check_read_ahead(const Diagnosis& diagnosis, Advices& advice) {
  const std::uint64_t nbytes = coldest(diagnosis).stats.bytes_buffered;
  if (nbytes < kMuchToRead) return;
  std::set<std::string> told;
  for (const FileDiagnosis& file : diagnosis.files) {
    if (file.read_ahead.value_or(kShortReadAhead) >= kShortReadAhead) continue;
    if (!told.insert(file.read_ahead_setting).second) continue;
    advice.push_back({"read_ahead",
                      fmt::format("{} are read through the page cache, and the kernel reads only {} ahead",
                                  format_size(nbytes), format_size(*file.read_ahead)),
                      fmt::format("echo {} > {}, as root", kGoodReadAhead / kKiB, file.read_ahead_setting)});
  }
}

void check_extents(const Diagnosis& diagnosis, Advices& advice) {
  for (const FileDiagnosis& file : diagnosis.files) {
    const std::uint64_t extents = file.extents.value_or(0);
    if (extents < kManyExtents || file.size / extents >= kSmallExtent) continue;
    advice.push_back({"fragmented",
                      fmt::format("{} lies in {} pieces of {} on average", file.path.filename().string(), extents,
                                  format_size(file.size / extents)),
                      "copy it once (cp --reflink=never) and put the copy in its place"});
  }
}

void check_landing(const Diagnosis& diagnosis, Advices& advice) {
  if (!is_set(diagnosis.machine, "PENSTOCK_LANDING")) return;
  advice.push_back({"landing", "PENSTOCK_LANDING is set, so nothing is mapped, whatever the page cache holds",
                    "unset PENSTOCK_LANDING, but for measurements"});
}

}  // namespace

bool ran_out_of_files(const FileDiagnosis& file) {
  return file.direct_error == EMFILE;
}

std::vector<Advice> advise(const Diagnosis& diagnosis) {
  Advices advice;
  for (const auto& check :
       {check_memory, check_open_files, check_direct, check_remote, check_uring, check_landing, check_layout,
        check_pickle, check_extents, check_read_ahead, check_locked_memory, check_huge_pages}) {
    check(diagnosis, advice);
  }
  return advice;
}

}  // namespace penstock
