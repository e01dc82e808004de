#include "bench_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "headline.h"
#include "interrupt.h"
#include "json.h"
#include "penstock/measure.h"
#include "table.h"
#include "text.h"
#include "units.h"

namespace penstock::cli {
namespace {

constexpr std::uint64_t kMostInFlight = 48 * kMiB;  // what the library allows itself on top of a payload
constexpr unsigned kRounds = 3;
constexpr double kPatienceSeconds = 30;  // for each direction
constexpr unsigned kFinalRounds = 5;     // by chance alone, one of 252 would be called faster

std::vector<Setting> combinations(unsigned most_threads) {
  std::vector<Setting> settings;
  for (const std::uint64_t block_size : {kMiB, 2 * kMiB, 4 * kMiB, 8 * kMiB}) {
    for (const unsigned depth : {4u, 8u, 16u, 32u}) {
      if (block_size * depth > kMostInFlight) continue;
      for (unsigned threads = 1; threads <= std::min(most_threads, depth); threads *= 2) {
        settings.push_back({{.block_size = block_size, .queue_depth = depth, .threads = threads}, {}});
      }
    }
  }
  return settings;
}

struct Direction {
  const char* key;
  const char* title;
  SettingsTable table;
};

unsigned most_threads() {
  return std::max(2u, std::min(8u, std::thread::hardware_concurrency()));
}

SettingsTable measure_direction(const std::function<Throughput(const IoOptions&)>& move, const SettingsTask& task,
                                ProgressBar& bar) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const auto seconds = [start] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto measure = [&](Setting& setting) {
    check_interrupt();
    bar.show(std::min(1.0, seconds() / kPatienceSeconds), setting.io.threads ? format_setting(setting.io) : "defaults");
    const Throughput moved = move(setting.io);
    setting.measurement.add(moved.bytes, moved.seconds);
  };
  return measure_settings(most_threads(), task.rounds.value_or(kRounds), measure,
                          [&] { return task.rounds || seconds() < kPatienceSeconds; });
}

// A row for each block size and depth, a column for each number of threads.
void print_table(Console& console, const Direction& direction) {
  std::vector<Column> columns = {{direction.title}};
  for (unsigned threads = 1; threads <= most_threads(); threads *= 2) {
    columns.push_back({format_count_of(threads, "thread"), Align::kRight});
  }
  Table table(std::move(columns));
  std::vector<Cell> row;
  const auto& cells = direction.table.cells;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const auto& [io, measurement] = cells[i];
    if (io.threads == 1) row = {fmt::format("{} x {}", format_round_size(io.block_size), io.queue_depth)};
    row.emplace_back(measurement.count() > 0 ? fmt::format("{:.2f}", measurement.median()) : "");
    if (i + 1 == cells.size() || cells[i + 1].io.threads == 1) table.add(std::move(row));
  }
  table.print(console.out, console.terminal);
  console.out.write("\n");
}

std::string format_rates(const Measurement& measurement) {
  return fmt::format("{:.2f} ({})", measurement.median(), measurement.range());
}

// The variables count for reads and writes alike, so what they do to the other direction is told too.
void print_verdict(Console& console, const Direction& direction, const std::vector<Direction>& all) {
  const SettingsTable& table = direction.table;
  print_sentence(console, "  ",
                 fmt::format("{}, measured again: the defaults {}, {} {}", direction.title,
                             format_rates(table.defaults.measurement), format_setting(table.best.io),
                             format_rates(table.best.measurement)));
  if (!table.best_is_faster()) {
    console.out.write("  The defaults are as fast: nothing to set.\n\n");
    return;
  }
  console.out.print("  {}\n", console.terminal.paint(Tone::kGood, "export " + environment_for(table.best.io)));
  for (const Direction& other : all) {
    const Measurement& there = other.table.cells[table.best_cell].measurement;
    if (&other == &direction || there.count() == 0) continue;
    console.out.print("  With that, {} go at {:.2f}; with the defaults, at {:.2f}.\n", other.key, there.median(),
                      other.table.defaults.measurement.median());
  }
  console.out.write("\n");
}

void write_setting(JsonWriter& json, const Setting& setting) {
  json.begin_object();
  json.field("block_size", setting.io.block_size);
  json.field("queue_depth", setting.io.queue_depth);
  json.field("threads", setting.io.threads);
  json.field("gib_per_second", setting.measurement.median());
  json.key("rounds");
  json.begin_array();
  for (const double rate : setting.measurement.rates()) json.value(rate);
  json.end_array();
  json.end_object();
}

void write_direction(JsonWriter& json, const Direction& direction) {
  const SettingsTable& table = direction.table;
  json.key(direction.key);
  json.begin_object();
  json.key("defaults");
  write_setting(json, table.defaults);
  json.key("best");
  write_setting(json, table.best);
  json.key("environment");
  table.best_is_faster() ? json.value(environment_for(table.best.io)) : json.null();
  json.key("table");
  json.begin_array();
  for (const Setting& setting : table.cells) write_setting(json, setting);
  json.end_array();
  json.end_object();
}

void print_json(Console& console, const SettingsTask& task, const std::vector<Direction>& directions) {
  JsonWriter json;
  json.begin_object();
  json.field("path", task.name);
  json.field("bytes", task.bytes);
  for (const Direction& direction : directions) write_direction(json, direction);
  json.key("notes");
  json.begin_array();
  for (const std::string& note : task.notes) json.value(note);
  json.end_array();
  json.end_object();
  console.out.write(json.take() + "\n");
}

void print_report(Console& console, const SettingsTask& task, const std::vector<Direction>& directions) {
  print_headline(console, "", task.name,
                 fmt::format("transfers of {}, GiB/s by block size x depth and threads", format_size(task.bytes)));
  console.out.write("\n");
  for (const Direction& direction : directions) print_table(console, direction);
  for (const Direction& direction : directions) print_verdict(console, direction, directions);
  for (const std::string& note : task.notes) {
    print_sentence(console, "  " + console.terminal.paint(Tone::kWarning, "note:") + " ", printable(note));
  }
}

}  // namespace

SettingsTable measure_settings(unsigned most_threads, unsigned rounds, const std::function<void(Setting&)>& measure,
                               const std::function<bool()>& has_time) {
  SettingsTable table{combinations(most_threads), 0, {}, {}};
  for (unsigned round = 0; round < rounds; ++round) {
    for (Setting& setting : table.cells) {
      if (has_time()) measure(setting);
    }
  }
  const auto fastest = std::max_element(table.cells.begin(), table.cells.end(), [](const Setting& a, const Setting& b) {
    return a.measurement.median() < b.measurement.median();
  });
  table.best_cell = static_cast<std::size_t>(fastest - table.cells.begin());
  table.best.io = fastest->io;
  for (unsigned round = 0; round < kFinalRounds; ++round) {
    measure(table.defaults);
    measure(table.best);
  }
  return table;
}

std::string format_setting(const IoOptions& io) {
  return fmt::format("{} x {} on {}", format_round_size(io.block_size), io.queue_depth,
                     format_count_of(io.threads, "thread"));
}

std::string environment_for(const IoOptions& io) {
  return fmt::format("PENSTOCK_BLOCK_SIZE={}M PENSTOCK_QUEUE_DEPTH={} PENSTOCK_THREADS={}", io.block_size / kMiB,
                     io.queue_depth, io.threads);
}

void run_settings(Console& console, const SettingsTask& task, ProgressBar& bar) {
  drop_page_cache(task.file);
  bar.set_label("reading");
  std::vector<Direction> directions;
  const auto read = [&](const IoOptions& io) { return measure_read(task.file, io, task.bytes); };
  directions.push_back({"reads", "Reads", measure_direction(read, task, bar)});
  if (task.scratch) {
    bar.set_label("writing");
    const auto write = [&](const IoOptions& io) {
      return measure_write(*task.scratch, io, WriteMethod::kAuto, task.bytes);
    };
    directions.push_back({"writes", "Writes", measure_direction(write, task, bar)});
  }
  bar.finish();
  console.json ? print_json(console, task, directions) : print_report(console, task, directions);
}

}  // namespace penstock::cli
