// penstock tune: which block size, depth, backend and write method suit a drive, and how to set them.
#include <algorithm>
#include <chrono>
#include <filesystem>

#include "command.h"
#include "interrupt.h"
#include "json.h"
#include "model.h"
#include "penstock/error.h"
#include "penstock/measure.h"
#include "penstock/words.h"
#include "setting_text.h"
#include "sweep.h"
#include "table.h"
#include "text.h"
#include "units.h"

namespace penstock::cli {
namespace {

constexpr const char* kFooter =
    "Examples\n"
    "  penstock tune /data                         about a minute\n"
    "  penstock tune model.safetensors             the same, reading a file of yours, in any format\n"
    "  penstock tune /data --seconds 300           more measurements, steadier figures\n"
    "  penstock tune /data --json | jq .reads.best\n"
    "\n"
    "Temporary files are made in a directory of their own inside DIR, or beside FILE, and removed in any case.";

constexpr std::string_view kEnvironmentNote =
    "  The environment is for loads and saves alike: take the line that matters more to you.\n"
    "  Options are for one load or save, and come first.\n";

// A setting must beat the default by this much to be worth setting.
constexpr double kWorthwhile = 1.05;

struct Options {
  std::string path;
  std::uint64_t size = 512 * kMiB;
  double seconds = 60;
};

struct Direction {
  const char* key;    // "reads"
  const char* title;  // "Reads"
  const char* verb;   // "load"
  Sweep sweep;
};

std::vector<Backend> usable_backends() {
  const std::string names = available_backends();
  std::vector<Backend> backends;
  if (names.find("uring") != std::string::npos) backends.push_back(Backend::kUring);
  if (names.find("threads") != std::string::npos) backends.push_back(Backend::kThreads);
  return backends;
}

using MeasureFunction = std::function<Throughput(const Setting&)>;

// A way that this filesystem doesn't have (uncached writes on tmpfs) moves nothing, and so drops out.
void measure_once(SweepEntry& entry, const MeasureFunction& measure) {
  try {
    const Throughput throughput = measure(entry.setting);
    entry.measurement.add(throughput.bytes, throughput.seconds);
    entry.how = throughput.method + ", " + throughput.backend;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    entry.measurement.add(0, 1);
  }
}

// Runs `direction` until its sweep is settled or its share of the time is used up.
void run_sweep(Direction& direction, double seconds, const MeasureFunction& measure, ProgressBar& bar) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const auto elapsed = [start] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto measure_entry = [&](SweepEntry& entry) {
    check_interrupt();
    bar.show(elapsed() / seconds, format_setting(entry.setting));
    measure_once(entry, measure);
  };
  direction.sweep.run(measure_entry, [&] { return elapsed() < seconds; });
}

const SweepEntry* find_default(const std::vector<SweepEntry>& ranking) {
  for (const SweepEntry& entry : ranking) {
    if (entry.setting.is_default) return &entry;
  }
  return nullptr;
}

// How many times as fast as the default; 0 when that was not measured.
double gain_over_default(const SweepEntry& entry, const std::vector<SweepEntry>& ranking) {
  const SweepEntry* const standard = find_default(ranking);
  return standard != nullptr && standard->measurement.median() > 0
             ? entry.measurement.median() / standard->measurement.median()
             : 0;
}

void print_ranking(Console& console, const Direction& direction, const std::vector<SweepEntry>& ranking) {
  Table table({{direction.title},
               {"GiB/s", Align::kRight, Tone::kBold},
               {"OF DEFAULT", Align::kRight},
               {"RANGE", Align::kRight, Tone::kDim},
               {"HOW", Align::kLeft, Tone::kDim}});
  for (std::size_t i = 0; i < ranking.size(); ++i) {
    const SweepEntry& entry = ranking[i];
    if (i >= Sweep::kFinalists && !entry.setting.is_default) continue;
    const double gain = gain_over_default(entry, ranking);
    table.add({Cell(i == 0 ? Tone::kGood : Tone::kPlain, format_setting(entry.setting)),
               fmt::format("{:.2f}", entry.measurement.median()), gain > 0 ? fmt::format("{:.2f}x", gain) : "",
               entry.measurement.range(), entry.how});
  }
  table.print(console.out, console.terminal);
  if (!direction.sweep.is_complete()) {
    console.out.print("  {} not every setting could be measured in this time; --seconds gives it more\n",
                      console.terminal.paint(Tone::kWarning, "note:"));
  }
  console.out.write("\n");
}

// True when the best setting beats the default, and not by chance: at its slowest it was still faster.
bool is_worth_setting(const std::vector<SweepEntry>& ranking) {
  if (ranking.empty() || ranking.front().setting.is_default) return false;
  const SweepEntry* const standard = find_default(ranking);
  if (standard == nullptr) return true;
  return gain_over_default(ranking.front(), ranking) >= kWorthwhile &&
         ranking.front().measurement.lowest() > standard->measurement.median();
}

// What the best setting brings, as a sentence.
std::string verdict(const std::vector<SweepEntry>& ranking) {
  if (!is_worth_setting(ranking)) return "the default is as good as the best: nothing to set";
  const double gain = gain_over_default(ranking.front(), ranking);
  return gain == 0 ? "the best that was measured" : fmt::format("{:.2f} times as fast as the default", gain);
}

void print_advice(Console& console, const Direction& direction, const std::vector<SweepEntry>& ranking) {
  if (ranking.empty()) return;
  const SweepEntry& best = ranking.front();
  console.out.print("  {}  {}\n", console.terminal.paint(Tone::kBold, fmt::format("{:<6}", direction.title)),
                    verdict(ranking));
  if (!is_worth_setting(ranking)) return;
  const std::string call = fmt::format("penstock.{}(..., {})", direction.verb, python_for(best.setting));
  Table table({{""}, {"", Align::kLeft, Tone::kDim}, {"", Align::kLeft, Tone::kAccent}});
  table.add({"      ", "environment", environment_for(best.setting)});
  table.add({"", "Python", call});
  table.add({"", "C++", cpp_for(best.setting)});
  table.print(console.out, console.terminal);
  console.out.write("\n");
}

void write_entry(JsonWriter& json, const SweepEntry& entry, const std::vector<SweepEntry>& ranking) {
  json.begin_object();
  json.field("default", entry.setting.is_default);
  json.field("backend", to_word(entry.setting.io.backend));
  json.field("method", to_word(entry.setting.method));
  json.field("block_size", entry.setting.io.block_size);
  json.field("queue_depth", entry.setting.io.queue_depth);
  json.field("gib_per_second", entry.measurement.median());
  json.field("of_default", gain_over_default(entry, ranking));
  json.key("measured");
  json.begin_array();
  for (const double rate : entry.measurement.rates()) json.value(rate);
  json.end_array();
  json.field("how", entry.how);
  if (!entry.setting.is_default) json.field("environment", environment_for(entry.setting));
  json.end_object();
}

void write_direction(JsonWriter& json, const Direction& direction) {
  const std::vector<SweepEntry> ranking = direction.sweep.ranking();
  json.key(direction.key);
  json.begin_object();
  json.field("complete", direction.sweep.is_complete());
  json.field("worth_setting", is_worth_setting(ranking));
  json.key("best");
  ranking.empty() ? json.null() : write_entry(json, ranking.front(), ranking);
  json.key("ranking");
  json.begin_array();
  for (const SweepEntry& entry : ranking) write_entry(json, entry, ranking);
  json.end_array();
  json.end_object();
}

void print_results(Console& console, const Options& options, const Direction& reads, const Direction& writes) {
  if (console.json) {
    JsonWriter json;
    json.begin_object();
    json.field("path", options.path);
    json.field("bytes", options.size);
    json.field("backends", available_backends());
    write_direction(json, reads);
    write_direction(json, writes);
    json.end_object();
    console.out.write(json.take() + "\n");
    return;
  }
  console.out.print("{}  direct transfers of {}, backends: {}\n\n",
                    console.terminal.paint(Tone::kBold, printable(options.path)), format_size(options.size),
                    available_backends());
  for (const Direction* direction : {&reads, &writes}) print_ranking(console, *direction, direction->sweep.ranking());
  for (const Direction* direction : {&reads, &writes}) print_advice(console, *direction, direction->sweep.ranking());
  if (is_worth_setting(reads.sweep.ranking()) || is_worth_setting(writes.sweep.ranking())) {
    console.out.write(console.terminal.paint(Tone::kDim, kEnvironmentNote));
  }
}

// The file to read: the user's own, or one that is made for it.
std::filesystem::path prepare_file(const Options& options, bool own_file, const ScratchDirectory& scratch,
                                   ProgressBar& bar) {
  if (own_file) return options.path;
  std::filesystem::path made = scratch.path() / "model.safetensors";
  make_model(made, "safetensors", options.size, bar.function());
  return made;
}

int run(Console& console, Options options) {
  const std::filesystem::path path = options.path;
  std::error_code ignored;
  const bool own_file = std::filesystem::is_regular_file(path, ignored);
  const ScratchDirectory scratch(own_file ? std::filesystem::absolute(path).parent_path() : path);
  ProgressBar bar("preparing", console.error_terminal, console.progress_mode());
  const std::filesystem::path file = prepare_file(options, own_file, scratch, bar);
  options.size = std::min<std::uint64_t>(options.size, std::filesystem::file_size(file));
  if (options.size == 0) throw Failure(file.string() + ": is empty");
  drop_page_cache(file);

  Direction reads{"reads", "Reads", "load", Sweep(read_settings(usable_backends()))};
  bar.set_label("reading");
  run_sweep(
      reads, options.seconds / 2, [&](const Setting& setting) { return measure_read(file, setting.io, options.size); },
      bar);

  Direction writes{"writes", "Writes", "save", Sweep(write_settings())};
  bar.set_label("writing");
  run_sweep(
      writes, options.seconds / 2,
      [&](const Setting& setting) { return measure_write(scratch.path(), setting.io, setting.method, options.size); },
      bar);
  bar.finish();
  print_results(console, options, reads, writes);
  return kSuccess;
}

}  // namespace

void add_tune(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand("tune", "Find the settings that suit a drive");
  command->footer(kFooter);
  const auto options = std::make_shared<Options>();
  command->add_option("PATH", options->path, "A directory on the drive, or a file there to read")->required();
  add_size_option(*command, "--size", options->size, "How much is read and written each time (512MiB)");
  command->add_option("--seconds", options->seconds, "Time to spend (60)")
      ->type_name("N")
      ->check(CLI::Range(0.1, 86400.0));
  command->callback([options, &action] { action = [options](Console& console) { return run(console, *options); }; });
}

}  // namespace penstock::cli
