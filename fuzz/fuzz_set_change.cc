// Any bytes as the journal of a set that is being saved.
//
// What parses must reach nothing but names in the directory, and mean the same after encoding and parsing. What does
// not parse must change nothing.
#include <string>
#include <string_view>

#include "check.h"
#include "format/set_change.h"

namespace penstock {
namespace {

void check_entry(const SetEntry& entry) {
  FUZZ_CHECK(!entry.name.empty());
  FUZZ_CHECK(entry.name.find_first_of(std::string("/\0", 2)) == std::string::npos);
}

void check_change(std::string_view text) {
  const SetChange change = parse_change(text);
  if (change == SetChange{}) return;
  check_entry(change.index);
  for (const SetEntry& entry : change.appear) check_entry(entry);
  for (const SetEntry& entry : change.vanish) check_entry(entry);
  const std::string again = encode_change(change);
  FUZZ_CHECK(parse_change(again) == change);
  FUZZ_CHECK(parse_change(std::string_view(again).substr(0, again.size() - 1)) == SetChange{});
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  penstock::check_change({reinterpret_cast<const char*>(data), size});
  return 0;
}
