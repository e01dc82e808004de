#include "format/set_change.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <utility>

namespace penstock {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kFirstLine = "penstock set 1\n";
constexpr std::string_view kLastLine = "end\n";
constexpr std::string_view kJournalSuffix = ".saving";

// "KIND INODE MODIFIED LENGTH NAME\n": a name may hold any byte.
void append_record(std::string& text, std::string_view kind, const SetEntry& entry) {
  text += fmt::format("{} {} {} {} {}\n", kind, entry.inode, entry.modified_nanoseconds, entry.name.size(), entry.name);
}

// Reads records off the front of a text.
class RecordReader {
 public:
  explicit RecordReader(std::string_view text) : text_(text) {}

  bool take(std::string_view expected) {
    if (!text_.starts_with(expected)) return false;
    text_.remove_prefix(expected.size());
    return true;
  }

  std::optional<SetEntry> take_entry() {
    SetEntry entry;
    std::uint64_t length = 0;
    if (!take_integer(entry.inode) || !take_integer(entry.modified_nanoseconds) || !take_integer(length)) return {};
    if (length >= text_.size()) return {};
    entry.name = text_.substr(0, length);
    text_.remove_prefix(length);
    // Only names in the directory: a journal reaches nothing else, and no name that the system would read otherwise.
    if (entry.name.empty() || entry.name.find_first_of("/\0"sv) != std::string::npos || !take("\n")) return {};
    return entry;
  }

  bool at_end() const { return text_.empty(); }

 private:
  template <typename Integer>
  bool take_integer(Integer& number) {
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), number);
    if (error != std::errc()) return false;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return take(" ");
  }

  std::string_view text_;
};

}  // namespace

std::string encode_change(const SetChange& change) {
  std::string text(kFirstLine);
  append_record(text, "index", change.index);
  for (const SetEntry& entry : change.appear) append_record(text, "appear", entry);
  for (const SetEntry& entry : change.vanish) append_record(text, "vanish", entry);
  text += kLastLine;
  return text;
}

SetChange parse_change(std::string_view text) {
  SetChange change;
  RecordReader reader(text);
  if (!reader.take(kFirstLine) || !reader.take("index ")) return {};
  auto index = reader.take_entry();
  if (!index) return {};
  change.index = std::move(*index);
  while (!reader.take(kLastLine)) {
    const bool appears = reader.take("appear ");
    if (!appears && !reader.take("vanish ")) return {};
    auto entry = reader.take_entry();
    if (!entry) return {};
    (appears ? change.appear : change.vanish).push_back(std::move(*entry));
  }
  return reader.at_end() ? change : SetChange{};
}

bool is_change_text(std::string_view text) noexcept {
  return text.starts_with(kFirstLine) || kFirstLine.starts_with(text);
}

std::string journal_file_name(std::string_view file_name) {
  return fmt::format(".{}{}", file_name, kJournalSuffix);
}

bool is_journal_name(std::string_view name) noexcept {
  return name.size() > 1 + kJournalSuffix.size() && name.front() == '.' && name.ends_with(kJournalSuffix);
}

std::string_view saved_name_of_journal(std::string_view name) noexcept {
  return name.substr(1, name.size() - 1 - kJournalSuffix.size());
}

}  // namespace penstock
