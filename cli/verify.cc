// penstock verify: is a checkpoint whole? Structure always, checksums where the file carries them, more on request.
#include <algorithm>
#include <filesystem>

#include "checkpoint.h"
#include "command.h"
#include "fields_json.h"
#include "headline.h"
#include "penstock/convert.h"
#include "penstock/error.h"
#include "penstock/words.h"
#include "table.h"
#include "text.h"
#include "units.h"

namespace penstock::cli {
namespace {

constexpr const char* kFooter =
    "penstock verify model.safetensors # structure, and the checksums it carries\n"
    "penstock verify model/ --finite # no NaN, no infinity\n"
    "penstock verify model.safetensors --checksums # print a CRC-32C of every tensor\n"
    "\n"
    "A file is checked against the first of these that it has: a seal beside it (penstock seal), checksums that it "
    "carries (convert --checksums, a torch zip), the name of its blob in the Hugging Face cache. Exits with 1 when "
    "there "
    "is a problem, and prints each problem on a line of its own.";

struct Options {
  std::vector<std::string> paths;
  bool finite = false;
  bool print_checksums = false;
  bool structure_only = false;
  Verify against = Verify::kAny;
};

struct Result {
  VerifyReport report;
  std::string kind;  // "safetensors, 3 files"
  std::uint64_t file_size = 0;
};

Result check(Console& console, const Options& options, const std::string& path) {
  Result result;
  ProgressBar bar("verifying", console.error_terminal, console.progress_mode());
  VerifyOptions verify_options;
  verify_options.finite = options.finite;
  verify_options.checksums = options.structure_only ? Verify::kOff : options.against;
  verify_options.compute = options.print_checksums;
  verify_options.progress = bar.function();
  result.report = verify(path, verify_options);
  try {
    const Reader reader{std::filesystem::path(path)};
    result.kind = format_kind(reader);
    result.file_size = total_file_size(reader);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    result.kind = "chunks of torch.distributed.checkpoint";  // verify() has opened its files one by one
    result.file_size = result.report.bytes;
  }
  return result;
}

std::uint64_t count_not_finite(const VerifyReport& report) {
  std::uint64_t count = 0;
  for (const VerifiedTensor& tensor : report.tensors) count += tensor.not_finite;
  return count;
}

std::uint64_t count_mismatches(const VerifyReport& report) {
  std::uint64_t count = 0;
  for (const VerifiedTensor& tensor : report.tensors) {
    count += tensor.crc32c && tensor.expected_crc32c && *tensor.crc32c != *tensor.expected_crc32c ? 1 : 0;
  }
  return count;
}

std::vector<Cell> row(const char* what, Tone tone, const char* mark, std::string detail) {
  return {what, Cell(tone, mark), Cell(Tone::kDim, std::move(detail))};
}

std::vector<Cell> checksum_row(const Options& options, const VerifyReport& report) {
  if (options.structure_only) return row("checksums", Tone::kDim, "-", "not asked for");
  if (!report.had_checksums) return row("checksums", Tone::kDim, "-", "none: penstock seal makes some");
  const std::uint64_t mismatches = count_mismatches(report);
  if (mismatches > 0)
    return row("checksums", Tone::kBad, "bad",
               format_count_of(mismatches, "tensor") + (mismatches == 1 ? " differs" : " differ"));
  // Of a zip, whole records have checksums, and some hold no tensor.
  const bool corrupt = std::any_of(report.problems.begin(), report.problems.end(), [](const std::string& problem) {
    return problem.find(" corrupt: ") != std::string::npos;
  });
  const bool stored = report.against == to_word(Verify::kStored);
  if (corrupt) {
    return row("checksums", Tone::kBad, "bad",
               stored ? "not every record has the bytes that were saved" : "damaged, against the " + report.against);
  }
  return row("checksums", Tone::kGood, "ok",
             stored ? "every tensor has the bytes that were saved" : "every byte, against the " + report.against);
}

std::vector<Cell> finite_row(const Options& options, const VerifyReport& report) {
  if (!options.finite) return row("finite", Tone::kDim, "-", "not asked for (--finite)");
  const std::uint64_t count = count_not_finite(report);
  if (count > 0) return row("finite", Tone::kBad, "bad", format_count_of(count, "element") + " NaN or infinite");
  return row("finite", Tone::kGood, "ok", "no NaN, no infinity");
}

void print_checksums(Console& console, const VerifyReport& report) {
  Table table({{"CRC-32C", Align::kLeft, Tone::kAccent}, {"NAME"}});
  for (const VerifiedTensor& tensor : report.tensors) {
    table.add({tensor.crc32c ? fmt::format("{:08x}", *tensor.crc32c) : "-", printable(tensor.name)});
  }
  table.print(console.out, console.terminal);
  console.out.write("\n");
}

void print_result(Console& console, const Options& options, const std::string& path, const Result& result) {
  const VerifyReport& report = result.report;
  const std::string mark = report.ok ? console.terminal.good_mark() : console.terminal.bad_mark();
  print_headline(console, mark, path,
                 fmt::format("{}, {}, {}", format_count_of(report.tensors.size(), "tensor"),
                             format_size(result.file_size), result.kind));
  console.out.write("\n");
  if (options.print_checksums) print_checksums(console, report);
  print_opaque(console, report.opaque);
  Table table({{""}, {""}, {""}});
  table.add(row("structure", Tone::kGood, "ok", "table of contents: names, dtypes, shapes and byte ranges"));
  table.add(checksum_row(options, report));
  table.add(finite_row(options, report));
  table.print(console.out, console.terminal);
  if (report.bytes_read > 0) {
    const std::string reading =
        fmt::format("read {} in {} ({})", format_size(report.bytes_read), format_seconds(report.seconds),
                    format_rate(report.bytes_read, report.seconds));
    console.out.print("\n  {}\n", console.terminal.paint(Tone::kDim, reading));
  }
  if (!report.problems.empty()) console.out.write("\n");
  for (const std::string& problem : report.problems) {
    print_sentence(console, "  " + console.terminal.bad_mark() + " ", printable(problem));
  }
}

void print_json(Console& console, const std::string& path, const VerifyReport& report) {
  JsonWriter json;
  json.begin_object();
  json.field("path", path);
  write_fields(json, report);
  json.end_object();
  console.out.write(json.take() + "\n");
}

// A file that can't even be opened has one problem: the error.
void report_broken(Console& console, const std::string& path, const Error& error) {
  console.complain(error);
  if (!console.json) return;
  VerifyReport report;
  report.ok = false;
  report.problems.emplace_back(error.what());
  print_json(console, path, report);
}

int run(Console& console, const Options& options) {
  int code = kSuccess;
  bool first = true;
  for (const std::string& path : options.paths) {
    try {
      const Result result = check(console, options, path);
      if (!console.json && !first) console.out.write("\n");
      console.json ? print_json(console, path, result.report) : print_result(console, options, path, result);
      if (!result.report.ok) code = kFailure;
      first = false;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kCancelled) throw;
      report_broken(console, path, error);
      code = kFailure;
    }
  }
  return code;
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand("verify", "Check that checkpoints are whole");
  command->footer(kFooter);
  const auto options = std::make_shared<Options>();
  command->add_option("PATH", options->paths, "A file, a directory of shards or an index.json")->required();
  command->add_flag("--finite", options->finite, "Also look for NaN and infinities");
  command->add_flag("--checksums,--compute", options->print_checksums,
                    "Compute a CRC-32C of every tensor and print it");
  command->add_flag("--structure", options->structure_only,
                    "Don't read any data for the checksums that a file carries");
  command
      ->add_option_function<std::string>(
          "--against", [options](const std::string& word) { options->against = *from_word<Verify>(word); },
          "Insist on one: seal, stored or sha256")
      ->type_name("WHAT")
      ->check(CLI::IsMember({"seal", "stored", "sha256"}));
  command->callback([options, &action] { action = [options](Console& console) { return run(console, *options); }; });
}

}  // namespace penstock::cli
