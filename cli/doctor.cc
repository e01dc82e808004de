// penstock doctor: which way a load would take, why, and what would make it faster.
#include "penstock/doctor.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "checkpoint.h"
#include "command.h"
#include "fields_json.h"
#include "headline.h"
#include "penstock/error.h"
#include "penstock/leftovers.h"
#include "table.h"
#include "text.h"
#include "units.h"

namespace penstock::cli {
namespace {

constexpr const char* kFooter =
    "penstock doctor model.safetensors\n"
    "penstock doctor model/ # all shards of a directory\n"
    "penstock doctor model/ --json | jq '.advice[].remedy'\n"
    "penstock doctor --clean run/ # removes what killed saves left there\n"
    "\n"
    "Nothing is loaded: the way is planned by the code that loads, from what the kernel says at this moment. It is "
    "that of a load with nothing chosen (cache, landing and backend left open), into memory that is fresh.";

struct Options {
  std::string path;
  bool clean = false;
};

// Lines of "label  text", with what explains them below.
class Facts {
 public:
  Facts() : table_({{"", Align::kLeft, Tone::kDim}, {""}}) {}

  void add(std::string label, std::string text, Tone tone = Tone::kPlain) {
    table_.add({std::move(label), Cell(tone, printable(text))});
  }
  void explain(std::string text) {
    if (!text.empty()) table_.add({"", Cell(Tone::kDim, printable(text))});
  }
  void add_gap() { table_.add_gap(); }
  void print(Console& console) const { table_.print(console.out, console.terminal); }

 private:
  Table table_;
};

// What a fact is for each file, told once: "ext4", or "ext4 (3 files), tmpfs (1 file)".
template <typename Describe>
std::string told_once(const Diagnosis& diagnosis, Describe describe) {
  std::map<std::string, std::uint64_t> counts;
  for (const FileDiagnosis& file : diagnosis.files) ++counts[describe(file)];
  if (counts.size() == 1) return counts.begin()->first;
  std::string out;
  for (const auto& [text, count] : counts) {
    out += fmt::format("{}{} ({})", out.empty() ? "" : "; ", text, format_count_of(count, "file"));
  }
  return out;
}

std::string describe_filesystem(const FileDiagnosis& file) {
  std::string out = file.filesystem;
  if (!file.device.empty() && file.device != file.filesystem) out += " on " + file.device;
  out += file.in_memory ? ", in memory" : file.local ? ", local" : ", not known to be local";
  return file.virtual_drive ? out + ", a virtual drive" : out;
}

std::string describe_direct(const FileDiagnosis& file) {
  if (!file.direct) return fmt::format("no: {}", file.direct_refusal);
  return fmt::format("yes: offsets in multiples of {}, memory of {} ({})", file.offset_alignment, file.memory_alignment,
                     file.alignment_reported ? "by statx" : "assumed, a read worked");
}

// "0%", "100%" and, for all between, neither: "0.1%", "37.5%", "99.9%".
std::string format_share(std::uint64_t part, std::uint64_t whole) {
  if (part == 0) return "0%";
  if (part >= whole) return "100%";
  return fmt::format("{:.1f}%", std::clamp(100.0 * static_cast<double>(part) / static_cast<double>(whole), 0.1, 99.9));
}

std::string describe_residency(const Diagnosis& diagnosis) {
  std::uint64_t span = 0;
  std::uint64_t resident = 0;
  for (const FileDiagnosis& file : diagnosis.files) {
    span += file.span;
    resident += file.resident_bytes;
  }
  return fmt::format("{} of {} ({})", format_share(resident, span), format_size(span),
                     told_once(diagnosis, [](const FileDiagnosis& file) { return "by " + file.residency_source; }));
}

std::string describe_extents(const Diagnosis& diagnosis) {
  std::uint64_t extents = 0;
  std::uint64_t nbytes = 0;
  for (const FileDiagnosis& file : diagnosis.files) {
    if (!file.extents || *file.extents == 0) continue;
    extents += *file.extents;
    nbytes += file.size;
  }
  if (extents == 0) return "not told by the filesystem";
  if (extents == 1) return "in one piece";
  return fmt::format("in {}, {} on average", format_count_of(extents, "piece"), format_size(nbytes / extents));
}

std::string describe_tensors(const Diagnosis& diagnosis) {
  std::string out = diagnosis.tensors_misaligned == 0
                        ? "all aligned"
                        : fmt::format("{} misaligned ({})", format_count(diagnosis.tensors_misaligned),
                                      format_size(diagnosis.bytes_misaligned));
  if (diagnosis.tensors_scattered > 0) out += fmt::format(", {} scattered", format_count(diagnosis.tensors_scattered));
  return out;
}

// "direct, staged, uring 2 MiB x 16 on 2 threads".
std::string describe_route(const Stats& stats) {
  const std::string path = format_path(stats);
  return stats.threads > 0 ? fmt::format("{} on {}", path, format_count_of(stats.threads, "thread")) : path;
}

bool is_same_way(const Forecast& a, const Forecast& b) {
  return describe_route(a.stats) == describe_route(b.stats) && a.stats.reason == b.stats.reason;
}

void add_forecast(Facts& facts, const char* label, const Forecast& forecast) {
  facts.add(label, describe_route(forecast.stats), Tone::kGood);
  facts.explain(forecast.stats.reason);
  const Stats& stats = forecast.stats;
  if (stats.path == "mixed") {
    facts.explain(fmt::format("{} from the page cache, {} from the drive", format_size(stats.bytes_buffered),
                              format_size(stats.bytes_direct)));
  }
}

void add_routes(Facts& facts, const Diagnosis& diagnosis) {
  add_forecast(facts, "a load now", diagnosis.now);
  if (diagnosis.now.stats.path != "mapped") facts.explain("not mapped: " + diagnosis.now.mapping);
  if (diagnosis.cold && !is_same_way(*diagnosis.cold, diagnosis.now)) add_forecast(facts, "once cold", *diagnosis.cold);
  if (diagnosis.cold_reused && !is_same_way(*diagnosis.cold_reused, *diagnosis.cold)) {
    add_forecast(facts, "memory reused", *diagnosis.cold_reused);
  }
}

// "6.12.0" of "6.12.0-1-amd64".
std::string version_of(const std::string& kernel) {
  return kernel.substr(0, kernel.find('-'));
}

std::string describe_uring(const Machine& machine) {
  const std::string setting =
      machine.uring_disabled ? fmt::format(", kernel.io_uring_disabled={}", *machine.uring_disabled) : "";
  const std::string filter = machine.seccomp && !machine.uring ? ", a seccomp filter is in force" : "";
  return fmt::format("{} (Linux {}{}{})", machine.uring ? "works" : "is refused to this process",
                     version_of(machine.kernel), setting, filter);
}

std::string limit_text(std::uint64_t limit) {
  return limit == Machine::kUnlimited ? "unlimited" : format_round_size(limit);
}

std::string describe_locked_memory(const Diagnosis& diagnosis, const Forecast& cold) {
  const std::uint64_t limit = diagnosis.machine.locked_memory_limit;
  const std::string allowed = fmt::format("{} allowed", limit_text(limit));
  if (cold.stats.backend != "uring") return allowed + ", none needed";
  const std::string blocks =
      fmt::format("{}, {} of staging blocks", allowed, format_round_size(diagnosis.staging_bytes));
  if (!diagnosis.staging_registered) return blocks + " can't be registered";
  return blocks +
         (diagnosis.staging_bytes > limit ? " registered all the same: this process is privileged" : " registered");
}

void add_machine(Facts& facts, const Diagnosis& diagnosis) {
  const Machine& machine = diagnosis.machine;
  const Forecast& cold = diagnosis.cold ? *diagnosis.cold : diagnosis.now;
  facts.add("io_uring", describe_uring(machine));
  facts.explain(fmt::format("{}: {}", cold.stats.backend, cold.backend_reason));
  const bool enough = diagnosis.bytes + diagnosis.staging_bytes <= machine.memory_available;
  facts.add("memory",
            fmt::format("{} available, {}{} needed", format_size(machine.memory_available),
                        machine.memory_limited_by_cgroup
                            ? fmt::format("{} allowed by the cgroup, ", format_size(machine.memory_limit))
                            : "",
                        format_size(diagnosis.bytes + diagnosis.staging_bytes)),
            enough ? Tone::kPlain : Tone::kWarning);
  facts.add("locked memory", describe_locked_memory(diagnosis, cold));
  facts.add("open files",
            fmt::format(
                "{} allowed, {} needed",
                machine.open_files_limit == Machine::kUnlimited ? "unlimited" : format_count(machine.open_files_limit),
                format_count(diagnosis.open_files_needed)));
  facts.add("huge pages", machine.huge_pages.empty() ? "not known" : machine.huge_pages);
  for (const std::string& setting : machine.environment) facts.add("environment", setting, Tone::kWarning);
}

// "cuda:0 (NVIDIA H100), 79.6 GiB, NUMA node 0"
std::string describe_device(const DeviceInfo& device) {
  std::string out = fmt::format("{}, {}", device.name, format_size(device.total_memory));
  if (device.numa_node >= 0) out += fmt::format(", NUMA node {}", device.numa_node);
  return device.unified ? out + ", shares its memory with the host" : out;
}

void add_devices(Facts& facts, const Diagnosis& diagnosis) {
  const Devices& devices = diagnosis.devices;
  if (devices.found.empty()) return facts.add("devices", devices.why_none);
  const char* label = "devices";
  for (const DeviceInfo& device : devices.found) facts.add(std::exchange(label, ""), describe_device(device));
  facts.explain("the driver is for " + devices.driver);
  facts.add("pinned memory",
            fmt::format("{} at most, {} of locked memory allowed", format_round_size(devices.pinned_limit),
                        limit_text(diagnosis.machine.locked_memory_limit)));
  facts.explain("whether the driver grants it shows when it is first used: pinning, in the statistics of a load");
  facts.add("GPUDirect", devices.gds_obstacle.empty() ? "cuFile is asked" : "no: " + devices.gds_obstacle);
}

void print_advice(Console& console, const Diagnosis& diagnosis) {
  console.out.print("\n{}\n", console.terminal.paint(Tone::kBold, "What would make it faster"));
  if (diagnosis.advice.empty()) console.out.print("  {} nothing to change here\n", console.terminal.good_mark());
  for (const Advice& advice : diagnosis.advice) {
    print_sentence(console, "  " + console.terminal.paint(Tone::kWarning, "-") + " ", printable(advice.problem));
    print_sentence(console, "    ", printable(advice.remedy), Tone::kAccent);
  }
}

std::string kind_of(const Diagnosis& diagnosis) {
  const auto format = [](const FileDiagnosis& file) { return file.format; };
  if (diagnosis.files.empty()) return "no files";
  const std::string formats = told_once(diagnosis, format);
  return diagnosis.files.size() == 1 ? formats
                                     : fmt::format("{}, {}", formats, format_count_of(diagnosis.files.size(), "file"));
}

void print_diagnosis(Console& console, const Diagnosis& diagnosis, const std::string& path) {
  print_headline(console, "", path,
                 fmt::format("{}, {}, {}", kind_of(diagnosis), format_count_of(diagnosis.tensors, "tensor"),
                             format_size(diagnosis.bytes)));
  console.out.write("\n");
  Facts facts;
  if (!diagnosis.files.empty()) {
    facts.add("filesystem", told_once(diagnosis, describe_filesystem));
    facts.add("direct I/O", told_once(diagnosis, describe_direct));
    facts.add("page cache", describe_residency(diagnosis));
    facts.add("on the drive", describe_extents(diagnosis));
    facts.add("tensors", describe_tensors(diagnosis));
    facts.add_gap();
  }
  add_routes(facts, diagnosis);
  facts.add_gap();
  add_machine(facts, diagnosis);
  facts.add_gap();
  add_devices(facts, diagnosis);
  facts.print(console);
  print_advice(console, diagnosis);
}

void print_json(Console& console, const Diagnosis& diagnosis, const std::string& path) {
  JsonWriter json;
  json.begin_object();
  json.field("path", path);
  write_fields(json, diagnosis);
  json.end_object();
  console.out.write(json.take() + "\n");
}

int clean(Console& console, const std::string& directory) {
  const std::vector<Leftover> gone = remove_leftovers(std::filesystem::path(directory));
  if (console.json) {
    JsonWriter json;
    json.begin_object();
    json.field("path", directory);
    json.key("leftovers");
    json.begin_array();
    for (const Leftover& each : gone) {
      json.begin_object();
      json.field("path", each.path.native());
      json.field("restored", each.restored);
      json.end_object();
    }
    json.end_array();
    json.end_object();
    console.out.write(json.take() + "\n");
    return kSuccess;
  }
  for (const Leftover& each : gone) {
    console.out.print("{} {}\n", each.restored ? "restored from" : "removed", printable(each.path.native()));
  }
  if (gone.empty()) console.out.print("{}: no leftovers of killed saves\n", printable(directory));
  return kSuccess;
}

int run(Console& console, const Options& options) {
  if (options.clean) return clean(console, options.path);
  const Diagnosis diagnosis = diagnose(std::filesystem::path(options.path));
  console.json ? print_json(console, diagnosis, options.path) : print_diagnosis(console, diagnosis, options.path);
  return kSuccess;
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  CLI::App* const command =
      app.add_subcommand("doctor", "Explain which way a load would take, and what would make it faster");
  command->footer(kFooter);
  const auto options = std::make_shared<Options>();
  command->add_option("PATH", options->path, "A file, a directory of shards or an index.json")->required();
  command->add_flag("--clean", options->clean,
                    "Remove what killed saves left in the directory PATH; what a live save is at work on stays");
  command->callback([options, &action] { action = [options](Console& console) { return run(console, *options); }; });
}

}  // namespace penstock::cli
