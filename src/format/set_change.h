// SetChange: what the publishing of a set of files is going to do, as the text of its journal (docs/formats/sets.md).
//
// Who opens a directory reads it too: files that it says are going to appear belong to no checkpoint yet.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// A file by its name and by what it was then: another file of that name is not meant.
struct SetEntry {
  std::string name;  // in the directory
  std::uint64_t inode = 0;
  std::int64_t modified_nanoseconds = 0;
  friend bool operator==(const SetEntry&, const SetEntry&) = default;
};

struct SetChange {
  SetEntry index;  // the new one, under the name that it is going to have
  std::vector<SetEntry> appear;
  std::vector<SetEntry> vanish;
  friend bool operator==(const SetChange&, const SetChange&) = default;
};

// The journal's text, and back. A text that was cut off gives an empty change: nothing had been done when it was cut.
std::string encode_change(const SetChange& change);
SetChange parse_change(std::string_view text);

// Whether it is such a text, or one that was cut off.
bool is_change_text(std::string_view text) noexcept;

// "model.safetensors" -> ".model.safetensors.saving".
std::string journal_file_name(std::string_view file_name);
bool is_journal_name(std::string_view name) noexcept;
// And back.
std::string_view saved_name_of_journal(std::string_view name) noexcept;

}  // namespace penstock
