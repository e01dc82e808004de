// Any bytes as a zip archive and as a torch checkpoint in one.
//
// What parses must be consistent: records in order, without overlap, under names that differ, within the file; tensors
// within their records. What a flat checkpoint holds must come back after encoding and parsing. What does not parse
// must be refused by an Error of one line.
#include <algorithm>

#include "format/detect.h"
#include "format/memory_source.h"
#include "format/torch_encode.h"
#include "format/zip.h"
#include "torch_check.h"

namespace penstock {
namespace {

void check_records(const std::vector<zip::Record>& records, std::uint64_t file_size) {
  std::set<std::string_view> names;
  std::uint64_t next = 0;
  for (const zip::Record& record : records) {
    FUZZ_CHECK(record.header_offset >= next);
    FUZZ_CHECK(record.offset > record.header_offset);
    FUZZ_CHECK(record.offset <= file_size && record.stored_nbytes <= file_size - record.offset);
    FUZZ_CHECK(record.deflated || record.stored_nbytes == record.nbytes);
    FUZZ_CHECK(names.insert(record.name).second);
    next = record.offset + record.stored_nbytes;
  }
}

// The bytes of a laid-out file, with zeros for the tensors.
std::string file_of(const FilePlan& plan) {
  std::string file(static_cast<std::size_t>(plan.file_size), '\0');
  const auto put = [&](std::uint64_t offset, const std::vector<std::byte>& bytes) {
    std::copy_n(reinterpret_cast<const char*>(bytes.data()), bytes.size(),
                file.begin() + static_cast<std::ptrdiff_t>(offset));
  };
  put(0, plan.prefix);
  for (const Literal& literal : plan.literals) put(literal.offset, literal.bytes);
  put(plan.file_size - plan.suffix.size(), plan.suffix);
  return file;
}

void check_round_trip(const Layout& layout, std::uint64_t alignment) {
  std::vector<TensorSpec> specs;
  std::uint64_t total = 0;
  for (const TensorInfo& tensor : layout.tensors) {
    specs.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.nbytes});
    total += tensor.nbytes;
    if (total > (1u << 20)) return;
  }
  torch::EncodeOptions options;
  options.alignment = alignment;
  for (const bool legacy : {false, true}) {
    const FilePlan plan = legacy ? torch::encode_legacy(specs, options) : torch::encode_zip(specs, options, {});
    const Layout again = parse_layout(MemorySource(file_of(plan), "f"));
    FUZZ_CHECK(again.tensors.size() == specs.size());
    for (const TensorInfo& tensor : again.tensors) {
      FUZZ_CHECK(std::any_of(specs.begin(), specs.end(), [&](const TensorSpec& spec) {
        return spec.name == tensor.name && spec.dtype == tensor.dtype && spec.shape == tensor.shape &&
               plan.offsets[static_cast<std::size_t>(&spec - specs.data())] == tensor.offset;
      }));
    }
  }
}

void check(std::string_view input) {
  const MemorySource source(input, "f");
  try {
    check_records(zip::parse(source), input.size());
    const torch::Checkpoint checkpoint = torch::read_zip(source);
    fuzz::check_values(*checkpoint.tree);
    const Layout layout = torch::parse_zip(source);
    fuzz::check_layout(layout, input.size());
    fuzz::check_packed(layout, source);
    if (layout.tensors.size() <= 100) check_round_trip(layout, 64);
  } catch (const Error& error) {
    fuzz::check_message(error, /*may_be_unsupported=*/true);
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  penstock::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
