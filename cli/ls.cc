// penstock ls: what is in a checkpoint. Reads headers and footers only.
#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>

#include "checkpoint.h"
#include "command.h"
#include "fields_json.h"
#include "headline.h"
#include "json.h"
#include "penstock/error.h"
#include "penstock/reader.h"
#include "table.h"
#include "text.h"
#include "units.h"

namespace penstock::cli {
namespace {

constexpr const char* kFooter =
    "penstock ls model.safetensors\n"
    "penstock ls model.flashpack\n"
    "penstock ls model/ --summary # totals of all shards, by dtype\n"
    "penstock ls model/ --select '*.mlp.*' # some of the tensors\n"
    "penstock ls model/ --sort size | head # the largest first\n"
    "penstock ls model/ --json | jq '.tensors[].name'";

constexpr std::size_t kLongestValue = 100;  // of metadata, in bytes
constexpr std::size_t kJsonPart = 256 * 1024;

struct Options {
  std::vector<std::string> paths;
  std::vector<std::string> selected;
  std::string sort = "offset";
  bool summary = false;
};

struct Totals {
  std::uint64_t tensors = 0;
  std::uint64_t parameters = 0;
  std::uint64_t nbytes = 0;

  void add(const TensorInfo& tensor) {
    ++tensors;
    parameters += element_count(tensor);
    nbytes += tensor.nbytes;
  }
};

struct Listing {
  std::vector<const TensorInfo*> tensors;  // selected and sorted
  Totals totals;
  std::vector<std::pair<DType, Totals>> by_dtype;  // largest first
};

void sort_tensors(std::vector<const TensorInfo*>& tensors, const std::string& by) {
  const auto by_name = [](const TensorInfo* a, const TensorInfo* b) { return a->name < b->name; };
  const auto largest_first = [](const TensorInfo* a, const TensorInfo* b) { return a->nbytes > b->nbytes; };
  if (by == "name") std::sort(tensors.begin(), tensors.end(), by_name);
  if (by == "size") std::stable_sort(tensors.begin(), tensors.end(), largest_first);
}

Listing list(const Reader& reader, const Options& options) {
  Listing listing;
  std::map<DType, Totals> by_dtype;
  for (const TensorInfo& tensor : reader.tensors()) {
    if (!matches_any(options.selected, tensor.name)) continue;
    listing.tensors.push_back(&tensor);
    listing.totals.add(tensor);
    by_dtype[tensor.dtype].add(tensor);
  }
  sort_tensors(listing.tensors, options.sort);
  listing.by_dtype.assign(by_dtype.begin(), by_dtype.end());
  std::stable_sort(listing.by_dtype.begin(), listing.by_dtype.end(),
                   [](const auto& a, const auto& b) { return a.second.nbytes > b.second.nbytes; });
  return listing;
}

void print_tensors(Console& console, const Listing& listing) {
  Table table({{"DTYPE", Align::kLeft, Tone::kAccent}, {"SHAPE"}, {"SIZE", Align::kRight}, {"NAME"}});
  for (const TensorInfo* tensor : listing.tensors) {
    table.add({std::string(dtype_name(tensor->dtype)), format_shape(tensor->shape), format_size(tensor->nbytes),
               printable(tensor->name)});
  }
  table.print(console.out, console.terminal);
  console.out.write("\n");
}

void print_dtypes(Console& console, const Listing& listing) {
  Table table({{"DTYPE", Align::kLeft, Tone::kAccent},
               {"TENSORS", Align::kRight},
               {"PARAMETERS", Align::kRight},
               {"SIZE", Align::kRight},
               {"SHARE", Align::kRight}});
  for (const auto& [dtype, totals] : listing.by_dtype) {
    const double share = listing.totals.nbytes == 0
                             ? 0
                             : 100.0 * static_cast<double>(totals.nbytes) / static_cast<double>(listing.totals.nbytes);
    table.add({std::string(dtype_name(dtype)), format_count(totals.tensors), format_count(totals.parameters),
               format_size(totals.nbytes), fmt::format("{:.1f}%", share)});
  }
  table.print(console.out, console.terminal);
  console.out.write("\n");
}

// What a file holds packed counts as the file's: it comes right after it.
std::size_t file_of(const Reader& reader, const TensorInfo& tensor) {
  return reader.files()[tensor.file].unpacked ? tensor.file - 1 : tensor.file;
}

void print_files(Console& console, const Reader& reader) {
  const auto files = reader.files();
  if (std::count_if(files.begin(), files.end(), [](const FileInfo& file) { return !file.unpacked; }) < 2) return;
  std::vector<std::uint64_t> tensor_counts(files.size());
  for (const TensorInfo& tensor : reader.tensors()) ++tensor_counts[file_of(reader, tensor)];
  Table table({{"TENSORS", Align::kRight}, {"SIZE", Align::kRight}, {"FILE"}});
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (files[i].unpacked) continue;
    table.add(
        {format_count(tensor_counts[i]), format_size(files[i].size), printable(files[i].path.filename().string())});
  }
  table.print(console.out, console.terminal);
  console.out.write("\n");
}

std::string shortened(const std::string& value) {
  if (value.size() <= kLongestValue) return printable(value);
  std::size_t end = kLongestValue;
  while (end > 0 && (static_cast<unsigned char>(value[end]) & 0xC0) == 0x80) --end;  // not inside a character
  return fmt::format("{}... ({})", printable(std::string_view(value).substr(0, end)), format_size(value.size()));
}

void print_metadata(Console& console, const Metadata& metadata) {
  if (metadata.empty()) return;
  Table table({{"METADATA", Align::kLeft, Tone::kAccent}, {""}});
  for (const auto& [key, value] : metadata) table.add({shortened(key), shortened(value)});
  table.print(console.out, console.terminal);
  console.out.write("\n");
}

void print_totals(Console& console, const Reader& reader, const Listing& listing) {
  const std::size_t all = reader.tensors().size();
  const std::string of_all =
      listing.tensors.size() == all ? "" : fmt::format("{} of ", format_count(listing.tensors.size()));
  const std::string totals =
      fmt::format("{}{}, {}, {}", of_all, format_count_of(all, "tensor"),
                  format_count_of(listing.totals.parameters, "parameter"), format_size(listing.totals.nbytes));
  const std::string kind = format_kind(reader);
  const Terminal& terminal = console.terminal;
  if (terminal.width == 0 || totals.size() + kind.size() + 4 <= terminal.width) {
    console.out.print("  {}  {}\n", terminal.paint(Tone::kBold, totals), terminal.paint(Tone::kDim, kind));
    return;
  }
  print_sentence(console, "  ", totals, Tone::kBold);
  print_sentence(console, "  ", kind, Tone::kDim);
}

void print_listing(Console& console, const Reader& reader, const Options& options, const std::string& path) {
  const Listing listing = list(reader, options);
  print_headline(console, "", path, "");
  console.out.write("\n");
  if (!listing.tensors.empty()) options.summary ? print_dtypes(console, listing) : print_tensors(console, listing);
  print_files(console, reader);
  print_metadata(console, reader.metadata());
  for (const FileInfo& file : reader.files()) print_opaque(console, file.opaque);
  print_totals(console, reader, listing);
}

void write_totals(JsonWriter& json, const Totals& totals) {
  json.field("tensors", totals.tensors);
  json.field("parameters", totals.parameters);
  json.field("nbytes", totals.nbytes);
}

void write_tensor(JsonWriter& json, const TensorInfo& tensor) {
  json.begin_object();
  json.field("name", tensor.name);
  json.field("dtype", dtype_name(tensor.dtype));
  json.key("shape");
  json.begin_array();
  for (const std::int64_t dimension : tensor.shape) json.value(dimension);
  json.end_array();
  json.field("file", tensor.file);
  json.field("offset", tensor.offset);
  json.field("nbytes", tensor.nbytes);
  json.end_object();
}

void write_files(JsonWriter& json, const Reader& reader) {
  json.begin_array();
  for (const FileInfo& file : reader.files()) {
    json.begin_object();
    json.field("path", file.path.string());
    json.field("size", file.size);
    json.field("format", file.format);
    json.key("metadata");
    write_metadata(json, file.metadata);
    json.field("unpacked", file.unpacked);
    json.key("opaque");
    json.begin_array();
    for (const OpaqueValue& value : file.opaque) {
      json.begin_object();
      write_fields(json, value);
      json.end_object();
    }
    json.end_array();
    json.end_object();
  }
  json.end_array();
}

void write_totals(JsonWriter& json, const Listing& listing) {
  json.begin_object();
  write_totals(json, listing.totals);
  json.key("by_dtype");
  json.begin_object();
  for (const auto& [dtype, totals] : listing.by_dtype) {
    json.key(dtype_name(dtype));
    json.begin_object();
    write_totals(json, totals);
    json.end_object();
  }
  json.end_object();
  json.end_object();
}

void print_json(Console& console, const Reader& reader, const Options& options, const std::string& path) {
  const Listing listing = list(reader, options);
  JsonWriter json;
  json.begin_object();
  json.field("path", path);
  json.key("totals");
  write_totals(json, listing);
  json.key("metadata");
  write_metadata(json, reader.metadata());
  json.key("files");
  write_files(json, reader);
  if (!options.summary) {
    json.key("tensors");
    json.begin_array();
    for (const TensorInfo* tensor : listing.tensors) {
      write_tensor(json, *tensor);
      if (json.size() >= kJsonPart) console.out.write(json.take());
    }
    json.end_array();
  }
  json.end_object();
  console.out.write(json.take() + "\n");
}

// Like ls(1): a path that can't be listed is told and doesn't keep the others from being shown.
int run(Console& console, const Options& options) {
  int code = kSuccess;
  bool first = true;
  for (const std::string& path : options.paths) {
    try {
      const Reader reader{std::filesystem::path(path)};
      check_selection(reader.tensors(), options.selected, path);
      if (console.json) {
        print_json(console, reader, options, path);
      } else {
        if (!first) console.out.write("\n");
        print_listing(console, reader, options, path);
      }
      first = false;
    } catch (const Error& error) {
      console.complain(error);
      code = kFailure;
    } catch (const Failure& failure) {
      console.complain(failure.what());
      code = kFailure;
    }
  }
  return code;
}

}  // namespace

void add_ls(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand("ls", "List the tensors of checkpoints");
  command->footer(kFooter);
  const auto options = std::make_shared<Options>();
  command->add_option("PATH", options->paths, "A file, a directory of shards or an index.json")->required();
  add_select_option(*command, options->selected);
  command
      ->add_option("--sort", options->sort,
                   "By name, size (largest first) or offset (as they lie in the file; default)")
      ->type_name("KEY")
      ->check(CLI::IsMember({"name", "size", "offset"}));
  command->add_flag("-s,--summary", options->summary, "Totals by dtype instead of every tensor");
  command->callback([options, &action] { action = [options](Console& console) { return run(console, *options); }; });
}

}  // namespace penstock::cli
