// Any bytes as a seal, and any bytes with a seal's last lines behind them, whose checksum is right: else hardly any
// input would get past it.
//
// What parses must have as many blocks as its file, tensors within it in the order of their names, and mean the same
// after encoding and parsing. What does not parse must be refused by an Error of one line.
#include <fmt/format.h>

#include <string>

#include "base/checksum.h"
#include "check.h"
#include "format/memory_source.h"
#include "format/seal.h"

namespace penstock {
namespace {

void check_contents(const Seal& seal) {
  FUZZ_CHECK(is_seal_block_size(seal.block_size));
  FUZZ_CHECK(seal.blocks.size() == count_blocks(seal.size, seal.block_size));
  if (!seal.blocks.empty()) FUZZ_CHECK(seal.block(seal.blocks.size() - 1).end == seal.size);
  for (std::size_t i = 0; i < seal.tensors.size(); ++i) {
    const SealedTensor& tensor = seal.tensors[i];
    FUZZ_CHECK(tensor.offset <= seal.size && tensor.nbytes <= seal.size - tensor.offset);
    FUZZ_CHECK(i == 0 || seal.tensors[i - 1].name < tensor.name);
    FUZZ_CHECK(seal.find(tensor.name) == &tensor);
  }
}

void check_seal(const std::string& text) {
  Seal seal;
  try {
    seal = parse_seal(MemorySource(text, "f"));
  } catch (const Error& error) {
    fuzz::check_message(error, /*may_be_unsupported=*/true);  // of another version
    return;
  }
  check_contents(seal);
  const std::string again = encode_seal(seal);
  FUZZ_CHECK(encode_seal(parse_seal(MemorySource(again, "f"))) == again);
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  penstock::check_seal(text);
  const auto checksum = penstock::crc32c(std::as_bytes(std::span(text)));
  penstock::check_seal(text + fmt::format("  \"crc32c\": \"{:08x}\"\n}}\n", checksum));
  return 0;
}
