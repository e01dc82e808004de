// Any bytes as a legacy torch file, and any bytes as its object, between what such a file starts and ends with.
//
// What parses must be consistent: tensors within the file, every value can be asked for. What does not parse must be
// refused by an Error of one line.
#include "format/memory_source.h"
#include "torch_check.h"

namespace penstock {
namespace {

using namespace std::string_view_literals;

void check(const std::string& input) {
  const MemorySource source(input, "f");
  try {
    const torch::Checkpoint checkpoint = torch::read_legacy(source);
    fuzz::check_values(*checkpoint.tree);
    fuzz::check_layout(torch::parse_legacy(source), input.size());
    FUZZ_CHECK(torch::parse_storages(source).tensors.size() == checkpoint.tree->storages().size());
  } catch (const Error& error) {
    fuzz::check_message(error, /*may_be_unsupported=*/true);
  }
}

// The magic number, the version, an empty dict of sizes; then the object and what follows it.
std::string with_start(std::string_view rest) {
  std::string file("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}."sv);
  file += rest;
  return file;
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  penstock::check(input);
  penstock::check(penstock::with_start(input));
  return 0;
}
