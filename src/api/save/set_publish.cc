#include "api/save/set_publish.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <string>
#include <utility>

#include "api/save/set_files.h"
#include "api/save/set_journal.h"
#include "api/save/stale_seal.h"
#include "base/error.h"
#include "io/names.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

std::string base_name(const SetPublication& publication) {
  return publication.path.filename().native();
}

fs::path index_path(const SetPublication& publication) {
  return publication.path.parent_path() / index_file_name(base_name(publication));
}

void report(const SetPublication& publication, std::string_view step) {
  if (publication.after_step) publication.after_step(step);
}

bool is_kept(const SetPublication& publication, const fs::path& path) {
  std::error_code ignored;
  return std::any_of(publication.keep.begin(), publication.keep.end(),
                     [&](const fs::path& kept) { return fs::equivalent(kept, path, ignored); });
}

// The shards of the set that is there and of no other, and their seals, unless one of them is kept.
struct OldSet {
  bool is_kept = false;
  std::uint64_t generation = 0;  // of its shards' names
  std::vector<SetEntry> shards;
  std::set<std::string> others;  // what other sets beside it list
};

// Those that its index names, and those that are of the same set by their names: shards without a tensor.
std::set<std::string> find_old_names(const SetPublication& publication, int directory) {
  const std::string base = base_name(publication);
  std::set<std::string> names;
  std::set<ShardSetName> sets;
  for (std::string& name : read_index_files(index_path(publication)).value_or(std::vector<std::string>())) {
    if (const auto set = parse_shard_name(base, name)) sets.insert(*set);
    names.insert(std::move(name));
  }
  if (sets.empty()) return names;
  for (std::string& name : list_names(directory)) {
    const auto set = parse_shard_name(base, name);
    if (set && sets.contains(*set)) names.insert(std::move(name));
  }
  return names;
}

OldSet find_old_set(const SetPublication& publication, int directory) {
  OldSet old;
  const std::string base = base_name(publication);
  old.others = files_of_other_sets(publication.path);
  for (const std::string& name : find_old_names(publication, directory)) {
    old.generation = std::max(old.generation, shard_generation(base, name));
    old.is_kept = old.is_kept || is_kept(publication, publication.path.parent_path() / name);
    // Whatever an index says, only files of this kind are removed for it.
    if (name == base || fs::path(name).extension() != publication.path.extension()) continue;
    if (old.others.contains(name)) continue;
    if (auto entry = find_entry(directory, name)) old.shards.push_back(std::move(*entry));
    if (auto seal = find_entry(directory, seal_file_name(name))) old.shards.push_back(std::move(*seal));
  }
  if (old.is_kept) old.shards.clear();
  return old;
}

bool is_free(const SetPublication& publication, int directory, const std::string& name) {
  struct stat status {};
  if (::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) return false;
  if (errno != ENOENT) throw_errno(publication.path.native(), fmt::format("cannot name a shard {}", name), errno);
  return true;
}

// Names that no file has, and that the old set had not either: a reader of the old index finds its files or none.
std::vector<std::string> choose_names(const SetPublication& publication, int directory, std::uint32_t count,
                                      std::uint64_t old_generation) {
  const std::string base = base_name(publication);
  for (std::uint64_t generation = old_generation + 1;; ++generation) {
    std::vector<std::string> names;
    for (std::uint32_t shard = 0; shard < count; ++shard) {
      names.push_back(shard_file_name(base, shard, count, generation));
    }
    const auto free = [&](const std::string& name) { return is_free(publication, directory, name); };
    if (std::all_of(names.begin(), names.end(), free)) return names;
  }
}

// What a new file is going to be in the directory. After finish().
SetEntry entry_of(const NewFile& file, const std::string& name) {
  const NameIdentity identity = file.identity();
  return {name, identity.inode, identity.modified_nanoseconds};
}

SetEntry write_index(const SetPublication& publication, NewFile& file, const ShardIndex& index, std::uint64_t nbytes) {
  const std::string text = encode_shard_index(index, nbytes);
  file.write(0, text.data(), text.size());
  file.finish(text.size(), publication.durable);
  return entry_of(file, index_path(publication).filename().native());
}

// The names of the shards and of the index. When one fails, those that were given are taken back.
void give_names(const SetPublication& publication, std::span<NewFile* const> files, const ShardIndex& index,
                NewFile& index_file, int directory) {
  std::size_t named = 0;
  try {
    for (; named < files.size(); ++named) {
      remove_seal(directory, index.files[named]);  // of an older file of that name
      files[named]->publish_as(index.files[named]);
      report(publication, "shard named");
    }
    if (publication.durable) {
      for (NewFile* file : files) file->sync_named();
      sync_directory(directory, publication.path.native());
      report(publication, "shards durable");
    }
    remove_seal(index_file);
    index_file.publish();
  } catch (...) {
    while (named > 0) files[--named]->withdraw();
    throw;
  }
}

// Of a name that was cut off to fit, what is left of it counts.
bool is_temporary_of(std::string_view base, std::string_view target) {
  const std::string_view stem = base.substr(0, std::min(base.rfind('.'), kMaxStem));
  return belongs_to_set(base, target) || (target.size() == kMaxStem && target.starts_with(stem));
}

void clear_temporaries(const SetPublication& publication, int directory) {
  const std::string base = base_name(publication);
  remove_dead_temporaries(directory, [&](std::string_view target) { return is_temporary_of(base, target); });
}

void name_single(const SetPublication& publication, NewFile& file) {
  remove_seal(file);
  file.publish();
  report(publication, "file named");
  if (publication.durable) file.sync_name();
  report(publication, "file durable");
}

bool has_set(const SetPublication& publication, int directory) {
  return find_entry(directory, index_path(publication).filename().native()) || SetJournal::exists(publication.path);
}

// Has `name_file` give the new file its name, and removes the set whose place it takes. `name_file` says whether the
// file has the name then.
void replace_set(const SetPublication& publication, const ShardIndex& index, std::uint64_t nbytes,
                 const std::function<bool(int directory)>& name_file) {
  SetJournal journal(publication.path);
  const int directory = journal.directory();
  report(publication, "locked");
  const fs::path path = index_path(publication);
  const std::string index_name = path.filename().native();
  const OldSet old = find_old_set(publication, directory);
  if (old.is_kept || !find_entry(directory, index_name)) {
    name_file(directory);
    return;
  }
  NewFile index_file = NewFile::create(path);
  const SetEntry index_entry = write_index(publication, index_file, index, nbytes);
  journal.record({index_entry, {}, old.shards}, publication.durable);
  report(publication, "recorded");
  try {
    if (!name_file(directory)) return journal.finish();
    remove_seal(index_file);
    index_file.publish();
  } catch (...) {
    journal.finish();
    throw;
  }
  report(publication, "index replaced");
  if (publication.durable) index_file.sync_name();
  // What could not be removed is left to the next save, which finds it by the journal and the index.
  if (!remove_entries(directory, old.shards)) return;
  report(publication, "old shards removed");
  remove_entries(directory, {index_entry});
  report(publication, "index removed");
  if (publication.durable) sync_directory(directory, publication.path.native(), kSyncOfNameFailed);
  journal.finish();
}

}  // namespace

void clear_leftovers_of(const std::filesystem::path& set) {
  const fs::path parent = directory_of(set);
  const UniqueFd directory(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return;  // whoever makes the files says so
  clear_temporaries({set}, directory.get());
  SetJournal::remove_dead(set);
}

void publish_shards(const SetPublication& publication, std::span<NewFile* const> files, ShardIndex& index,
                    NewFile& index_file, std::uint64_t nbytes) {
  SetJournal journal(publication.path);
  const int directory = journal.directory();
  report(publication, "locked");
  clear_temporaries(publication, directory);
  OldSet old = find_old_set(publication, directory);
  index.files = choose_names(publication, directory, static_cast<std::uint32_t>(files.size()), old.generation);
  SetChange change{write_index(publication, index_file, index, nbytes), {}, {}};
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (!old.shards.empty()) files[i]->take_mode_of(old.shards.front().name);
    change.appear.push_back(entry_of(*files[i], index.files[i]));
  }
  change.vanish = std::move(old.shards);
  for (const std::string& name : publication.replaced) {
    auto entry = old.others.contains(name) ? std::nullopt : find_entry(directory, name);
    if (entry) change.vanish.push_back(std::move(*entry));
  }
  // Others prefer the single file to an index beside it.
  auto single = find_entry(directory, base_name(publication));
  if (single && !is_kept(publication, publication.path) && !old.others.contains(single->name)) {
    if (auto seal = find_entry(directory, seal_file_name(single->name))) change.vanish.push_back(std::move(*seal));
    change.vanish.push_back(std::move(*single));
  }
  journal.record(change, publication.durable);
  report(publication, "recorded");
  try {
    give_names(publication, files, index, index_file, directory);
  } catch (...) {
    const auto is_left = [&](const SetEntry& entry) { return is_there(directory, entry); };
    // What could not be taken back is left to the next save.
    if (std::none_of(change.appear.begin(), change.appear.end(), is_left)) journal.finish();
    throw;
  }
  report(publication, "committed");
  // From here on the new set is there, whatever fails; the journal remembers what still has to go.
  if (publication.durable) index_file.sync_name();
  report(publication, "index durable");
  const bool all_gone = remove_entries(directory, change.vanish);
  report(publication, "old files removed");
  // What could not be removed is left to the next save.
  if (all_gone) journal.finish();
}

void publish_single(const SetPublication& publication, NewFile& file, const ShardIndex& index, std::uint64_t nbytes) {
  const auto name_file = [&](int) {
    name_single(publication, file);
    return true;
  };
  if (has_set(publication, file.directory())) {
    replace_set(publication, index, nbytes, name_file);
  } else {
    name_file(file.directory());
    // A set that another process published meanwhile hides the file, unless it has taken its place already.
    if (has_set(publication, file.directory())) {
      const SetEntry named = entry_of(file, base_name(publication));
      replace_set(publication, index, nbytes, [&](int directory) { return is_there(directory, named); });
    }
  }
  clear_temporaries(publication, file.directory());
}

void publish_files(const SetPublication& publication, std::span<NewFile* const> files, ShardIndex& index,
                   std::optional<NewFile>& index_file, std::uint64_t nbytes) {
  if (index_file) {
    publish_shards(publication, files, index, *index_file, nbytes);
  } else {
    publish_single(publication, *files.front(), index, nbytes);
  }
}

}  // namespace penstock
