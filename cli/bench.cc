// penstock bench: what this drive can do, and what penstock makes of it.
#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>

#include "bench_rounds.h"
#include "bench_settings.h"
#include "checkpoint.h"
#include "command.h"
#include "headline.h"
#include "interrupt.h"
#include "json.h"
#include "model.h"
#include "penstock/device.h"
#include "penstock/doctor.h"
#include "penstock/error.h"
#include "table.h"
#include "text.h"
#include "units.h"

namespace penstock::cli {
namespace {

constexpr const char* kFooter =
    "penstock bench # a model of 1 GiB in this directory, removed afterwards\n"
    "penstock bench --dir /data --size 4GiB --rounds 5\n"
    "penstock bench model.safetensors # your own file; saves go to a temporary directory beside it\n"
    "penstock bench model/ # your own shards, in any format\n"
    "penstock bench --format torch # a PyTorch checkpoint instead of safetensors\n"
    "penstock bench model.safetensors --device 0 # loads to that GPU too\n"
    "penstock bench --dir /data --settings # is another block size, depth or number of threads faster there?\n"
    "\n"
    "The drive's read and write rates are direct transfers that move the bytes and do nothing else. 1.00x is as fast "
    "as that.\n"
    "A cold load starts with nothing of the file in the page cache, a warm one with all of it. Every page of what was "
    "loaded is touched, and a save ends when the drive has it all; both count. Figures are medians of the rounds, of "
    "which none is begun that would take it past a minute.";

constexpr unsigned kRounds = 3;
constexpr double kPatienceSeconds = 60;

struct Options {
  std::string path;
  std::string directory;
  std::string format = "safetensors";  // of the temporary model
  std::uint64_t size = 0;              // 0: not said
  std::optional<unsigned> rounds;
  std::optional<int> device;
  bool settings = false;

  bool own_file() const { return !path.empty(); }
  // Of the model that is made, or that is measured of the user's own.
  std::uint64_t most_bytes() const {
    if (size > 0) return size;
    return settings ? 256 * kMiB : own_file() ? 4 * kGiB : kGiB;
  }
};

struct StepText {
  Step step;
  const char* key;    // in JSON
  const char* title;  // for people
  Step ceiling;
};

constexpr std::array<StepText, kStepCount> kSteps = {
    {{Step::kReadCeiling, "read_ceiling", "drive, direct read", Step::kReadCeiling},
     {Step::kColdLoad, "cold_load", "cold load, fresh memory", Step::kReadCeiling},
     {Step::kColdLoadReused, "cold_load_reused", "cold load, reused memory", Step::kReadCeiling},
     {Step::kDeviceLoad, "device_load", "cold load, device", Step::kReadCeiling},
     {Step::kWarmLoad, "warm_load", "warm load", Step::kReadCeiling},
     {Step::kWarmLoadCopied, "warm_load_copied", "warm load, copied", Step::kReadCeiling},
     {Step::kWriteCeiling, "write_ceiling", "drive, durable write", Step::kWriteCeiling},
     {Step::kSave, "save", "durable save", Step::kWriteCeiling}}};

const StepText& text_of(Step step) {
  return *std::find_if(kSteps.begin(), kSteps.end(), [step](const StepText& text) { return text.step == step; });
}

// Everything that the output says.
struct Report {
  std::string path;
  std::string format;
  std::uint64_t bytes = 0;
  std::uint64_t tensors = 0;
  unsigned rounds = 0;
  bool cold = true;
  std::optional<Stats> device;  // of a load to one
  std::vector<std::string> notes;
  std::vector<std::pair<StepText, StepResult>> results;

  double ceiling_of(const StepText& text) const {
    for (const auto& [other, result] : results) {
      if (other.step == text.ceiling) return result.measurement.median();
    }
    return 0;
  }

  double ratio_of(const StepText& text, const StepResult& result) const {
    const double ceiling = ceiling_of(text);
    return ceiling > 0 ? result.measurement.median() / ceiling : 0;
  }
};

Tone tone_of(double ratio) {
  return ratio >= 0.9 ? Tone::kGood : ratio >= 0.6 ? Tone::kWarning : Tone::kBad;
}

// What a load to a device says of its way, below the table.
void print_device(Console& console, const Stats& stats) {
  console.out.print("\n  {}\n", printable(stats.device));
  const auto print = [&](const char* label, const std::string& text) {
    if (!text.empty()) print_sentence(console, console.terminal.paint(Tone::kDim, label), printable(text));
  };
  print("    pinned memory  ", stats.pinning);
  print("    GPUDirect      ", stats.gds);
}

void print_report(Console& console, const Report& report) {
  print_headline(
      console, "", report.path,
      fmt::format("{}, {}, {}, {}", report.format, format_size(report.bytes), format_count_of(report.tensors, "tensor"),
                  report.rounds == 1 ? "one round" : fmt::format("median of {} rounds", report.rounds)));
  console.out.write("\n");
  Table table({{""},
               {"GiB/s", Align::kRight, Tone::kBold},
               {"OF DRIVE", Align::kRight},
               {"RANGE", Align::kRight, Tone::kDim},
               {"HOW", Align::kLeft, Tone::kDim}});
  for (const auto& [text, result] : report.results) {
    if (text.step == Step::kWriteCeiling) table.add_gap();
    const double ratio = report.ratio_of(text, result);
    const bool is_ceiling = text.step == text.ceiling;
    table.add({Cell(is_ceiling ? Tone::kAccent : Tone::kPlain, text.title),
               fmt::format("{:.2f}", result.measurement.median()),
               is_ceiling ? Cell("") : Cell(tone_of(ratio), fmt::format("{:.2f}x", ratio)), result.measurement.range(),
               result.how});
  }
  table.print(console.out, console.terminal);
  if (report.device) print_device(console, *report.device);
  if (!report.notes.empty()) console.out.write("\n");
  for (const std::string& note : report.notes) {
    print_sentence(console, "  " + console.terminal.paint(Tone::kWarning, "note:") + " ", printable(note));
  }
}

void write_result(JsonWriter& json, const Report& report, const StepText& text, const StepResult& result) {
  json.begin_object();
  json.field("name", text.key);
  json.field("gib_per_second", result.measurement.median());
  if (text.step != text.ceiling) json.field("of_drive", report.ratio_of(text, result));
  json.key("rounds");
  json.begin_array();
  for (const double rate : result.measurement.rates()) json.value(rate);
  json.end_array();
  json.field("how", result.how);
  json.end_object();
}

void print_json(Console& console, const Report& report) {
  JsonWriter json;
  json.begin_object();
  json.field("path", report.path);
  json.field("format", report.format);
  json.field("bytes", report.bytes);
  json.field("tensors", report.tensors);
  json.field("rounds", report.rounds);
  json.field("cold", report.cold);
  if (report.device) {
    json.key("device");
    json.begin_object();
    json.field("name", report.device->device);
    json.field("pinning", report.device->pinning);
    json.field("gds", report.device->gds);
    json.field("bytes_gds", report.device->bytes_gds);
    json.end_object();
  }
  json.key("results");
  json.begin_array();
  for (const auto& [text, result] : report.results) write_result(json, report, text, result);
  json.end_array();
  json.key("notes");
  json.begin_array();
  for (const std::string& note : report.notes) json.value(note);
  json.end_array();
  json.end_object();
  console.out.write(json.take() + "\n");
}

Report make_report(const std::string& path, const BenchRounds& rounds, unsigned round_count) {
  Report report;
  report.path = path;
  report.bytes = rounds.bytes();
  report.tensors = rounds.tensors();
  report.rounds = round_count;
  report.cold = rounds.could_drop_cache();
  if (rounds.result(Step::kDeviceLoad).measurement.count() > 0) report.device = rounds.device_stats();
  for (const StepText& text : kSteps) {
    if (rounds.result(text.step).measurement.count() > 0) report.results.emplace_back(text, rounds.result(text.step));
  }
  if (!rounds.could_drop_cache()) {
    report.notes.emplace_back("the page cache could not be dropped here (is it tmpfs?): the cold figures are not cold");
  }
  if (!rounds.could_fill_cache()) {
    report.notes.emplace_back("the file did not stay in the page cache: the warm figures are not warm");
  }
  if (!rounds.loads_everything()) {
    report.notes.push_back(fmt::format("{} of it were measured; --size takes more, up to half of the memory available",
                                       format_size(rounds.bytes())));
  }
  return report;
}

// Where saves are measured; nothing when that can't be done but the rest can.
std::unique_ptr<ScratchDirectory> make_scratch(const Options& options, std::uint64_t nbytes, std::string& why_not) {
  const bool own_file = options.own_file();
  std::filesystem::path parent = options.directory;
  if (parent.empty()) {
    parent = own_file ? std::filesystem::absolute(options.path).parent_path() : std::filesystem::path(".");
  }
  try {
    auto scratch = std::make_unique<ScratchDirectory>(parent);
    // The made-up model and the saved copy of it exist at the same time.
    const std::uint64_t needed = (own_file ? 1 : 2) * nbytes + 64 * kMiB;
    const std::uint64_t available = std::filesystem::space(parent).available;
    if (available >= needed) return scratch;
    throw Error(ErrorKind::kNoSpace, fmt::format("{}: {} are needed, {} are free", parent.string(), format_size(needed),
                                                 format_size(available)));
  } catch (const Error& error) {
    if (!own_file) throw;
    why_not = fmt::format("saving was not measured: {}", error.what());
    return nullptr;
  }
}

struct Measured {
  BenchRounds rounds;
  unsigned count = 0;
};

// Throws Error when there is no such device.
std::optional<BenchDevice> open_device(const Options& options) {
  if (!options.device) return std::nullopt;
  Allocator allocate = device_allocator(*options.device);
  for (const DeviceInfo& info : list_devices()) {
    if (info.number == *options.device) return BenchDevice{info, std::move(allocate)};
  }
  return std::nullopt;
}

// Half of the memory that there is, of the host and of the device.
std::uint64_t most_bytes(const Options& options, const std::optional<BenchDevice>& device) {
  const std::uint64_t on_host = std::min(options.most_bytes(), inspect_machine().memory_available / 2);
  return device ? std::min(on_host, device->info.total_memory / 2) : on_host;
}

Measured run_rounds(const Reader& reader, const ScratchDirectory* scratch, std::optional<BenchDevice> device,
                    const Options& options, ProgressBar& bar) {
  const unsigned round_count = options.rounds.value_or(kRounds);
  std::size_t steps_done = 0;
  Step current = Step::kReadCeiling;
  const int steps = kStepCount - (scratch != nullptr ? 0 : 2) - (device ? 0 : 1);
  const auto total = static_cast<double>(round_count) * steps;
  const auto show = [&](Step step, double fraction) {
    if (fraction == 0 && step != current) ++steps_done;
    current = step;
    bar.show((static_cast<double>(steps_done) + fraction) / total, text_of(step).title);
  };
  const auto scratch_path = scratch != nullptr ? std::optional(scratch->path()) : std::nullopt;
  const std::uint64_t max_bytes = most_bytes(options, device);
  Measured measured{BenchRounds(reader, scratch_path, std::move(device), max_bytes, show)};
  const auto start = std::chrono::steady_clock::now();
  while (measured.count < round_count) {
    measured.rounds.run();
    ++measured.count;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!options.rounds && seconds + seconds / measured.count > kPatienceSeconds) break;
  }
  return measured;
}

void refuse_unpacked(const Reader& reader) {
  for (const FileInfo& file : reader.files()) {
    if (!file.unpacked) continue;
    throw Failure(
        fmt::format("{}: has tensors that are compressed or inside its pickle, and only what lies in a file as "
                    "it is can be measured; penstock convert writes such a file",
                    file.path.string()));
  }
}

SettingsTask settings_task(const Reader& reader, const ScratchDirectory* scratch, const Options& options) {
  const auto& files = reader.files();
  const FileInfo& largest = *std::max_element(files.begin(), files.end(),
                                              [](const FileInfo& a, const FileInfo& b) { return a.size < b.size; });
  SettingsTask task;
  task.name = options.own_file() ? options.path : "temporary model";
  task.file = largest.path;
  task.bytes = std::min(largest.size, options.most_bytes());
  if (scratch != nullptr) task.scratch = scratch->path();
  task.rounds = options.rounds;
  return task;
}

int run(Console& console, const Options& options) {
  const bool own_file = options.own_file();
  std::optional<BenchDevice> device = open_device(options);  // first: no model is made where there is none
  std::optional<Reader> reader;
  if (own_file) refuse_unpacked(reader.emplace(std::filesystem::path(options.path)));
  std::string why_no_save;
  const std::uint64_t nbytes =
      own_file ? std::min(total_file_size(*reader), options.most_bytes()) : options.most_bytes();
  const auto scratch = make_scratch(options, nbytes, why_no_save);
  ProgressBar bar("preparing", console.error_terminal, console.progress_mode());
  if (!own_file) {
    const std::filesystem::path model = scratch->path() / ("model." + options.format);
    make_model(model, options.format, nbytes, bar.function());
    reader.emplace(model);
  }
  if (options.settings) {
    SettingsTask task = settings_task(*reader, scratch.get(), options);
    if (!why_no_save.empty()) task.notes.push_back(why_no_save);
    run_settings(console, task, bar);
    return kSuccess;
  }
  bar.set_label("measuring");
  const Measured measured = run_rounds(*reader, scratch.get(), std::move(device), options, bar);
  bar.finish();
  Report report = make_report(own_file ? options.path : "temporary model", measured.rounds, measured.count);
  report.format = format_of(*reader);
  if (!why_no_save.empty()) report.notes.push_back(why_no_save);
  console.json ? print_json(console, report) : print_report(console, report);
  return kSuccess;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand("bench", "Measure loads and saves against what the drive can do");
  command->footer(kFooter);
  const auto options = std::make_shared<Options>();
  command->add_option("FILE", options->path, "A checkpoint; without one a temporary model is made");
  add_size_option(*command, "--size", options->size, "Size of the temporary model (1GiB), or how much of FILE (4GiB)");
  command
      ->add_option("--format", options->format, "Its format: safetensors (default), flashpack, torch or torch-legacy")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"safetensors", "flashpack", "torch", "torch-legacy"}));
  command->add_option("--dir", options->directory, "Where to put temporary files (this directory, or FILE's)")
      ->type_name("DIR");
  command->add_option("--rounds", options->rounds, "How often to measure (3, as far as a minute allows)")
      ->type_name("N")
      ->check(CLI::Range(1, 1000));
  CLI::Option* const device =
      command->add_option("--device", options->device, "Also measure loads to this GPU, by its number")
          ->type_name("N")
          ->check(CLI::Range(0, 999));
  command
      ->add_flag("--settings", options->settings,
                 "The drive's speed over block size, depth and threads, and what to set if that is faster")
      ->excludes(device);
  command->callback([options, &action] { action = [options](Console& console) { return run(console, *options); }; });
}

}  // namespace penstock::cli
