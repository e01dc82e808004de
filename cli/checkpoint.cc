#include "checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>

#include "command.h"
#include "nearest.h"
#include "table.h"
#include "text.h"
#include "units.h"

namespace penstock::cli {
namespace {

constexpr std::size_t kMostOpaque = 20;

}  // namespace

std::string format_shape(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::uint64_t element_count(const TensorInfo& tensor) {
  // In two steps: nbytes * 8 may not fit.
  const std::uint64_t bits = dtype_bits(tensor.dtype);
  return bits >= 8 ? tensor.nbytes / (bits / 8) : tensor.nbytes / bits * 8 + tensor.nbytes % bits * 8 / bits;
}

std::uint64_t total_file_size(const Reader& reader) {
  std::uint64_t nbytes = 0;
  for (const FileInfo& file : reader.files()) nbytes += file.unpacked ? 0 : file.size;
  return nbytes;
}

std::string format_of(const Reader& reader) {
  // An index may list no file at all.
  return reader.files().empty() ? "safetensors" : reader.files().front().format;
}

std::string format_kind(const Reader& reader) {
  const auto files = reader.files();
  const auto count = static_cast<std::size_t>(
      std::count_if(files.begin(), files.end(), [](const FileInfo& file) { return !file.unpacked; }));
  if (count == 1) return format_of(reader);
  return count == 0 ? "no files" : fmt::format("{}, {}", format_of(reader), format_count_of(count, "file"));
}

bool matches_any(const std::vector<std::string>& globs, const std::string& name) {
  return globs.empty() || std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) {
           return fnmatch(glob.c_str(), name.c_str(), 0) == 0;
         });
}

void check_selection(std::span<const TensorInfo> tensors, const std::vector<std::string>& globs,
                     const std::string& source) {
  for (const std::string& glob : globs) {
    const bool matches = std::any_of(tensors.begin(), tensors.end(),
                                     [&glob](const TensorInfo& tensor) { return matches_any({glob}, tensor.name); });
    if (matches) continue;
    std::vector<std::string> names;
    for (const TensorInfo& tensor : tensors) names.push_back(tensor.name);
    throw Failure(fmt::format("{}: no tensor matches --select '{}'; {}", source, glob, tell_nearest(glob, names)));
  }
}

void add_select_option(CLI::App& command, std::vector<std::string>& globs) {
  command.add_option("--select,--filter", globs, "Only tensors whose name matches (may be repeated)")
      ->type_name("GLOB")
      ->allow_extra_args(false);
}

std::string format_path(const Stats& stats) {
  std::string out = stats.path;
  if (!stats.landing.empty() && stats.landing != stats.path) out += ", " + stats.landing;
  if (stats.block_size == 0 || stats.queue_depth == 0 || stats.path == "mapped") return out;
  return fmt::format("{}, {} {} x {}", out, stats.backend, format_round_size(stats.block_size), stats.queue_depth);
}

void print_opaque(Console& console, std::span<const OpaqueValue> values) {
  if (values.empty()) return;
  Table table({{"OPAQUE", Align::kLeft, Tone::kAccent}, {""}});
  for (const OpaqueValue& value : values.first(std::min(values.size(), kMostOpaque))) {
    table.add({value.path.empty() ? "(all of it)" : printable(value.path), printable(value.name)});
  }
  if (values.size() > kMostOpaque) {
    table.add({"...", fmt::format("and {} more", format_count(values.size() - kMostOpaque))});
  }
  table.print(console.out, console.terminal);
  console.out.write("\n");
}

void write_metadata(JsonWriter& json, const Metadata& metadata) {
  json.begin_object();
  for (const auto& [key, value] : metadata) json.field(key, value);
  json.end_object();
}

}  // namespace penstock::cli
