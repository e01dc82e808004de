// Any bytes as fragments of a legacy torch file.
//
// A file that parses, cut as FastPersist's writers cut it, must come back byte for byte. Anything else, cut in two,
// must be refused by an Error of one line or give a file that parses.
#include <deque>

#include "format/memory_source.h"
#include "format/torch_fragments.h"
#include "torch_check.h"

namespace penstock {
namespace {

std::string merge(const std::deque<std::string>& fragments) {
  std::deque<MemorySource> sources;
  std::vector<const ByteSource*> pointers;
  for (const std::string& fragment : fragments) pointers.push_back(&sources.emplace_back(fragment, "f"));
  const torch::MergedFragments merged(std::move(pointers), "f");
  std::uint64_t total = 0;
  for (const std::string& fragment : fragments) total += fragment.size();
  FUZZ_CHECK(merged.size() <= total);
  std::string file(static_cast<std::size_t>(merged.size()), '\0');
  merged.read(0, std::as_writable_bytes(std::span(file)));
  static_cast<void>(torch::read_legacy(merged));
  return file;
}

void check_cut(const std::string& input, std::uint64_t head) {
  const std::uint64_t stream = input.size() - head;
  for (const std::uint32_t count : {1u, 2u, 3u, 7u}) {
    std::deque<std::string> fragments;
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      const ByteRange share = torch::fragment_share(stream, rank, count);
      fragments.push_back(input.substr(0, head) + input.substr(head + share.begin, share.size()));
    }
    FUZZ_CHECK(merge(fragments) == input);
  }
}

void check(const std::string& input) {
  const MemorySource source(input, "f");
  try {
    static_cast<void>(torch::read_legacy(source));
    check_cut(input, torch::read_legacy_head(source).nbytes());
  } catch (const Error& error) {
    fuzz::check_message(error, /*may_be_unsupported=*/true);
  }
  try {
    static_cast<void>(merge({input.substr(0, input.size() / 2), input.substr(input.size() / 2)}));
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
