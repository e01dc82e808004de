// penstock seal: manifests of checksums beside the files of checkpoints, which are left alone.
#include "penstock/seal.h"

#include <filesystem>

#include "command.h"
#include "fields_json.h"
#include "headline.h"
#include "manual.h"
#include "text.h"
#include "units.h"

namespace penstock::cli {
namespace {

constexpr const char* kFooter =
    "penstock seal model.safetensors # writes model.safetensors.seal.json\n"
    "penstock seal model/ # every shard, and the index\n"
    "penstock seal model.safetensors --sha256 # and a SHA-256 of the whole file\n"
    "\n"
    "The files may have any format, and are only read. penstock verify, and loads with verify=True, check every bit of "
    "them against their seals. A seal that is there already is replaced; a save over a sealed file removes its seal.";

struct Options {
  std::vector<std::string> paths;
  bool sha256 = false;
  std::uint64_t block_size = SealOptions().block_size;
  bool fast = false;  // --no-durable
};

void print_json(Console& console, const SealReport& report) {
  JsonWriter json;
  json.begin_object();
  write_fields(json, report);
  json.end_object();
  console.out.write(json.take() + "\n");
}

int run(Console& console, const Options& options) {
  ProgressBar bar("sealing", console.error_terminal, console.progress_mode());
  SealOptions seal_options;
  seal_options.sha256 = options.sha256;
  seal_options.block_size = options.block_size;
  seal_options.durable = !options.fast;
  seal_options.progress = bar.function();
  const std::vector<std::filesystem::path> paths(options.paths.begin(), options.paths.end());
  const SealReport report = seal(paths, seal_options);
  if (console.json) {
    print_json(console, report);
    return kSuccess;
  }
  for (const SealedFile& file : report.files) {
    print_headline(console, console.terminal.good_mark(), file.seal.native(),
                   file.sha256.empty() ? format_size(file.nbytes)
                                       : fmt::format("{}, SHA-256 {}", format_size(file.nbytes), file.sha256));
  }
  return kSuccess;
}

}  // namespace

void add_seal(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand("seal", "Write checksums of files beside them, to verify against");
  command->footer(kFooter);
  const auto options = std::make_shared<Options>();
  command->add_option("PATH", options->paths, "A file, a directory of shards or an index.json")->required();
  command->add_flag("--sha256", options->sha256, "Also a SHA-256 of every file, about 1 GB/s on each core");
  add_size_option(*command, "--block-size", options->block_size,
                  "A power of two from 512 to 1GiB: how exactly damage is located (1MiB)");
  command->add_flag("--no-durable", options->fast, "Don't wait until the seals are on the drive");
  command->callback([options, &action] { action = [options](Console& console) { return run(console, *options); }; });
}

}  // namespace penstock::cli
