// penstock convert: copies a checkpoint to another layout, format or dtype, in a stream and in bounded memory.
#include "penstock/convert.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>

#include "checkpoint.h"
#include "command.h"
#include "fields_json.h"
#include "headline.h"
#include "interrupt.h"
#include "manual.h"
#include "penstock/error.h"
#include "renaming.h"
#include "units.h"

namespace penstock::cli {
namespace {

constexpr const char* kFooter =
    "penstock convert model/ model.safetensors # join shards\n"
    "penstock convert a.safetensors b.flashpack # to FlashPack, or from it\n"
    "penstock convert a.safetensors b.pt # to a file that torch.load reads\n"
    "penstock convert a.safetensors out/b.safetensors --max-shard-size 5GB\n"
    "penstock convert a.safetensors b.safetensors --dtype bf16 # floating tensors become BF16\n"
    "penstock convert a.safetensors b.safetensors --select 'decoder.*'\n"
    "penstock convert a.safetensors b.safetensors --strip-prefix model.\n"
    "penstock convert checkpoint/model.pt-*.8 model.pt # join what FastPersist's writers left\n"
    "penstock convert run/step-00000100 model.safetensors # join what ranks wrote with torch.distributed.checkpoint\n"
    "penstock convert model.safetensors run/step-00000200 --format dcp # and back, to a directory for it\n"
    "\n"
    "DST appears whole or not at all. SRC is never changed. What DST's format can't hold is left out and told.\n"
    "5GB are 5 * 1000^3 bytes, 5G and 5GiB 5 * 1024^3.";

struct Options {
  std::vector<std::string> sources;
  std::string target;
  std::optional<DType> dtype;
  std::vector<std::string> selected;
  Renaming renaming;
  std::uint64_t max_shard_size = 0;
  std::string format;
  FlashPackOptions flashpack;
  bool checksums = false;
  bool force = false;
  bool no_verify = false;
  bool fast = false;  // --no-durable
};

DType dtype_from(const std::string& text) {
  const std::optional<DType> dtype = find_dtype(text);
  if (!dtype) throw CLI::ValidationError("--dtype: '" + text + "' is not a dtype: there are " + list_dtypes());
  if (!dtype_can_cast(DType::kF32, *dtype)) {
    throw CLI::ValidationError("--dtype: floating tensors can't be converted to " + std::string(dtype_name(*dtype)));
  }
  return *dtype;
}

std::vector<std::filesystem::path> source_paths(const Options& options) {
  return {options.sources.begin(), options.sources.end()};
}

// For messages.
std::string source_text(const Options& options) {
  const std::size_t others = options.sources.size() - 1;
  return options.sources.front() + (others == 0 ? "" : " and " + format_count_of(others, "other file"));
}

ConvertOptions library_options(const Options& options, ProgressBar& bar) {
  ConvertOptions result;
  if (!options.selected.empty()) {
    result.select = [globs = options.selected](const TensorInfo& tensor) { return matches_any(globs, tensor.name); };
  }
  result.dtype = options.dtype;
  result.rename = rename_function(options.renaming);
  result.overwrite = options.force;
  if (options.no_verify) result.verify = Verify::kOff;
  result.save.format = options.format;
  result.save.flashpack = options.flashpack;
  result.save.max_shard_size = options.max_shard_size;
  result.save.checksums = options.checksums;
  result.save.durable = !options.fast;
  result.save.progress = bar.function();
  return result;
}

void print_result(Console& console, const Options& options, const ConvertStats& stats) {
  if (console.json) {
    JsonWriter json;
    json.begin_object();
    json.field("source", options.sources.front());
    if (options.sources.size() > 1) {
      json.key("sources");
      json.begin_array();
      for (const std::string& source : options.sources) json.value(source);
      json.end_array();
    }
    json.field("target", options.target);
    json.field("durable", !options.fast);
    write_fields(json, stats);
    json.end_object();
    console.out.write(json.take() + "\n");
    return;
  }
  print_headline(console, console.terminal.good_mark(), options.target,
                 fmt::format("{}, {} in {} ({})", format_count_of(stats.tensors, "tensor"), format_size(stats.bytes),
                             format_seconds(stats.seconds), format_rate(stats.bytes, stats.seconds)));
  console.out.flush();
  for (const std::string& note : stats.notes) console.note(note);
}

// The library's message, but for the case where an option of ours helps.
ConvertStats convert_or_hint(const Options& options, ProgressBar& bar) {
  try {
    return convert(source_paths(options), options.target, library_options(options, bar));
  } catch (const Error& error) {
    if (error.error_number() != EEXIST || options.force) throw;
    const std::string message = error.what();
    throw Failure(message.substr(0, message.find(';')) + "; --force replaces it");
  }
}

void check_names(const Options& options) {
  if (options.selected.empty() && options.renaming.changes_nothing()) return;
  std::vector<TensorInfo> tensors;
  try {
    tensors = source_tensors(source_paths(options));
  } catch (const Error&) {
    return;  // convert() will complain about it
  }
  check_selection(tensors, options.selected, source_text(options));
  check_renaming(tensors, options.renaming, source_text(options));
}

int run(Console& console, const Options& options) {
  std::error_code ignored;
  const bool is_directory = options.format != "dcp" && std::filesystem::is_directory(options.target, ignored);
  if (is_directory) throw Failure(options.target + ": is a directory; name a file in it");
  check_names(options);
  const StoppableWork work;
  ProgressBar bar("converting", console.error_terminal, console.progress_mode());
  const ConvertStats stats = convert_or_hint(options, bar);
  bar.finish();
  print_result(console, options, stats);
  return kSuccess;
}

void add_flashpack_options(CLI::App& command, FlashPackOptions& options) {
  add_size_option(command, "--align-bytes", options.align_bytes, "FlashPack: tensors start on multiples of this (128)");
  command.add_flag("--keep-order", options.keep_order,
                   "FlashPack: tensors as they lie in SRC; else those with the most elements first");
  command.add_flag("--align-large", options.align_large,
                   "FlashPack: tensors of at least 256 KiB start on multiples of 4 KiB");
}

// SRC takes every path that is given and hands the last one on to DST.
void add_paths(CLI::App& command, Options& options) {
  const auto destination = std::make_shared<CLI::Option*>();
  const auto split = [&options, destination](const std::vector<std::string>& paths) {
    options.sources = paths;
    if (paths.size() < 2) return;
    options.sources.pop_back();
    (*destination)->add_result(paths.back());
  };
  command
      .add_option_function<std::vector<std::string>>("SRC", split,
                                                     "A file, a directory of shards, an index.json, or several files: "
                                                     "fragments of FastPersist are joined, and so are "
                                                     "the chunks in a directory of torch.distributed.checkpoint")
      ->required();
  *destination =
      command.add_option("DST", options.target, "The file to make; with --max-shard-size, shards are named after it")
          ->required();
}

}  // namespace

void add_convert(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand("convert", "Copy a checkpoint to another layout, format or dtype");
  command->footer(kFooter);
  const auto options = std::make_shared<Options>();
  add_paths(*command, *options);
  command
      ->add_option_function<std::string>(
          "--dtype", [options](const std::string& text) { options->dtype = dtype_from(text); },
          "Convert floating tensors to this: F32, BF16, float16, F8_E4M3 ...")
      ->type_name("DTYPE")
      ->check(suggests({"F32", "BF16", "F16", "F64", "F8_E4M3", "F8_E5M2",  // as files spell them, and as people do
                        "f32", "bf16", "f16", "f64", "f8_e4m3", "f8_e5m2"}));
  add_select_option(*command, options->selected);
  add_renaming_options(*command, options->renaming);
  add_size_option(*command, "--max-shard-size", options->max_shard_size,
                  "Split into shards of at most this size, with an index; they appear as one");
  command
      ->add_option("--format", options->format,
                   "Format of DST: safetensors, flashpack, torch, torch-legacy, or dcp, which is a directory for "
                   "torch.distributed.checkpoint; else by its suffix")
      ->type_name("FORMAT")
      ->check(suggests({"safetensors", "flashpack", "torch", "torch-legacy", "dcp"}));
  add_flashpack_options(*command, options->flashpack);
  command->add_flag("--checksums", options->checksums, "Store a CRC-32C of every tensor, for verify");
  command->add_flag("--no-verify", options->no_verify, "Don't check SRC against its seal or its own checksums");
  command->add_flag("-f,--force", options->force, "Replace DST if it exists");
  command->add_flag("--no-durable", options->fast, "Don't wait for the drive: faster, may be lost in a power cut");
  command->callback([options, &action] { action = [options](Console& console) { return run(console, *options); }; });
}

}  // namespace penstock::cli
