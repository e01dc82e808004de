// Any bytes as the index of a sharded checkpoint.
//
// What parses must name plain files only, each once, and mean the same after encoding and parsing. What does not parse
// must be refused by an Error of one line.
#include <set>
#include <string>

#include "check.h"
#include "format/memory_source.h"
#include "format/shards.h"

namespace penstock {
namespace {

void check_files(const ShardIndex& index) {
  std::set<std::string> names;
  std::set<std::uint32_t> used;
  for (const std::string& file : index.files) {
    FUZZ_CHECK(names.insert(file).second);
    FUZZ_CHECK(!file.empty() && file != "." && file != "..");
    FUZZ_CHECK(file.find_first_of(std::string("/\\\0", 3)) == std::string::npos);
  }
  for (const auto& [tensor, number] : index.weight_map) {
    FUZZ_CHECK(number < index.files.size());
    used.insert(number);
  }
  FUZZ_CHECK(used.size() == index.files.size());
}

void check_round_trip(const ShardIndex& index) {
  const std::string text = encode_shard_index(index, 42);
  const ShardIndex again = parse_shard_index(MemorySource(text, "f"));
  FUZZ_CHECK(again.weight_map.size() == index.weight_map.size());
  for (const auto& [tensor, number] : index.weight_map) {
    FUZZ_CHECK(again.files.at(again.weight_map.at(tensor)) == index.files.at(number));
  }
  Metadata metadata = index.metadata;
  metadata["total_size"] = "42";
  FUZZ_CHECK(again.metadata == metadata);
}

void check_index(std::string_view text) {
  ShardIndex index;
  try {
    index = parse_shard_index(MemorySource(text, "f"));
  } catch (const Error& error) {
    fuzz::check_message(error);
    return;
  }
  check_files(index);
  check_round_trip(index);
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  penstock::check_index({reinterpret_cast<const char*>(data), size});
  return 0;
}
