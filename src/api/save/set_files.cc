#include "api/save/set_files.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "format/memory_source.h"
#include "format/shards.h"
#include "io/file.h"
#include "io/names.h"

namespace penstock {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMaxIndexSize = 100'000'000;

std::string read_index(const File& file) {
  std::string text(std::min(file.size(), kMaxIndexSize + 1), '\0');  // one more is refused
  file.read(0, text.data(), text.size());
  return text;
}

}  // namespace

fs::path directory_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

std::optional<SetEntry> find_entry(int directory, const std::string& name) {
  const auto found = find_name(directory, name);
  if (!found) return std::nullopt;
  return SetEntry{name, found->inode, found->modified_nanoseconds};
}

bool is_there(int directory, const SetEntry& entry) {
  return find_entry(directory, entry.name) == entry;
}

bool remove_entries(int directory, const std::vector<SetEntry>& files) {
  bool all_gone = true;
  for (const SetEntry& entry : files) {
    if (is_there(directory, entry) && !remove_name(directory, entry.name)) all_gone = false;
  }
  return all_gone;
}

std::optional<std::vector<std::string>> read_index_files(const fs::path& index) {
  try {
    const File file = File::open(index);
    return parse_shard_index(MemorySource(std::string_view(read_index(file)), index.native())).files;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kNotFound) return std::vector<std::string>();
    return std::nullopt;
  }
}

std::set<std::string> files_of_other_sets(const fs::path& set) {
  const std::string own = index_file_name(set.filename().native());
  std::set<std::string> files;
  std::error_code error;
  for (fs::directory_iterator it(directory_of(set), error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().native();
    if (name == own || !name.ends_with(kIndexSuffix)) continue;
    if (const auto listed = read_index_files(it->path())) files.insert(listed->begin(), listed->end());
  }
  return files;
}

}  // namespace penstock
