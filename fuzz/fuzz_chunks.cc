// Any bytes as what describes a directory of torch.distributed.checkpoint: dcp.json, or torch's pickle `.metadata`.
//
// What parses must name plain files only; the chunks of a tensor lie within it, are apart, and together are all of it;
// dcp.json means the same after encoding and parsing. What does not parse must be refused by an Error of one line.
#include <set>
#include <string>

#include "check.h"
#include "format/chunks.h"
#include "format/memory_source.h"

namespace penstock {
namespace {

constexpr std::uint64_t kMostElements = 4096;

std::uint64_t count(const Shape& shape) {
  std::uint64_t product = 1;
  for (const std::int64_t size : shape) product *= static_cast<std::uint64_t>(size);
  return product;
}

// Element by element, for small tensors.
void check_cover(const ChunkedTensor& tensor) {
  std::uint64_t limit = 1;  // of what is gone through, also where a dimension is 0
  for (const std::int64_t size : tensor.shape) {
    limit *= static_cast<std::uint64_t>(size) + 1;
    if (limit > kMostElements) return;
  }
  std::set<Shape> seen;
  for (const TensorChunk& chunk : tensor.chunks) {
    if (count(chunk.shape) == 0) continue;
    Shape at = chunk.offsets;
    for (bool more = true; more;) {
      FUZZ_CHECK(seen.insert(at).second);
      more = false;
      for (std::size_t i = at.size(); i-- > 0 && !more;) {
        more = ++at[i] < chunk.offsets[i] + chunk.shape[i];
        if (!more) at[i] = chunk.offsets[i];
      }
    }
  }
  FUZZ_CHECK(seen.size() == count(tensor.shape));
}

void check_checkpoint(const ChunkedCheckpoint& checkpoint) {
  for (const std::string& file : checkpoint.files) {
    FUZZ_CHECK(!file.empty() && file != "." && file != "..");
    FUZZ_CHECK(file.find_first_of(std::string("/\0", 2)) == std::string::npos);
  }
  std::set<std::string> names(checkpoint.objects.begin(), checkpoint.objects.end());
  FUZZ_CHECK(names.size() == checkpoint.objects.size());
  for (const ChunkedTensor& tensor : checkpoint.tensors) {
    FUZZ_CHECK(names.insert(tensor.name).second);
    for (const TensorChunk& chunk : tensor.chunks) {
      FUZZ_CHECK(chunk.file < checkpoint.files.size());
      FUZZ_CHECK(chunk.offsets.size() == tensor.shape.size() && chunk.shape.size() == tensor.shape.size());
    }
    check_cover(tensor);
  }
}

void check_round_trip(ChunkedCheckpoint checkpoint) {
  checkpoint.objects.clear();
  const std::string text = encode_chunks(checkpoint);
  const ChunkedCheckpoint again = parse_chunks(MemorySource(text, "f"));
  FUZZ_CHECK(again.files == checkpoint.files && again.tensors.size() == checkpoint.tensors.size());
  FUZZ_CHECK(encode_chunks(again) == text);
}

void check_chunks_text(std::string_view text) {
  const bool is_json = text.starts_with('{');
  try {
    const MemorySource source(text, "f");
    const ChunkedCheckpoint checkpoint = is_json ? parse_chunks(source) : parse_torch_chunks(source);
    check_checkpoint(checkpoint);
    if (is_json) check_round_trip(checkpoint);
  } catch (const Error& error) {
    fuzz::check_message(error, /*may_be_unsupported=*/true);
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  penstock::check_chunks_text({reinterpret_cast<const char*>(data), size});
  return 0;
}
