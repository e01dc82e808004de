// From paths to a Reader's state: files, directories of shards and index.json.
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "api/files/file_bytes.h"
#include "api/files/reader_state.h"
#include "base/error.h"
#include "format/checksums.h"
#include "format/detect.h"
#include "format/set_change.h"
#include "format/shards.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPreferredIndex = "model.safetensors.index.json";
// How often what changes while it is opened is looked at again: saves take much longer than opening does.
constexpr int kAttempts = 100;
constexpr std::uint64_t kMaxJournalSize = 100'000'000;

// What of a directory could be opened.
struct Listing {
  std::vector<fs::path> indexes;
  std::map<std::string_view, std::vector<fs::path>> files;  // by suffix, sorted
  std::vector<fs::path> journals;                           // of saves that go on, or were killed
  friend bool operator==(const Listing&, const Listing&) = default;
};

Listing list_directory(const fs::path& directory) {
  Listing listing;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().native();
    if (is_journal_name(name)) listing.journals.push_back(it->path());
    if (name.starts_with('.')) continue;
    if (name.ends_with(kIndexSuffix)) listing.indexes.push_back(it->path());
    for (const std::string_view suffix : data_suffixes()) {
      if (name.ends_with(suffix)) listing.files[suffix].push_back(it->path());
    }
  }
  if (error) throw_errno(directory.native(), "cannot list the directory", error.value());
  for (auto& [suffix, found] : listing.files) std::sort(found.begin(), found.end());
  return listing;
}

// What it says is going on; nothing where it is gone or half written.
SetChange read_journal(const fs::path& path) {
  try {
    const File file = File::open(path);
    if (file.size() > kMaxJournalSize) return {};
    std::string text(file.size(), '\0');
    file.read(0, text.data(), text.size());
    return parse_change(text);
  } catch (const Error&) {
    return {};
  }
}

// Shards that saves have named, and maybe were killed then, and that no index lists yet: inode, time, name.
using Unfinished = std::set<std::tuple<std::uint64_t, std::int64_t, std::string>>;
Unfinished find_unfinished(const Listing& listing) {
  Unfinished unfinished;
  for (const fs::path& journal : listing.journals) {
    for (SetEntry& entry : read_journal(journal).appear) {
      unfinished.emplace(entry.inode, entry.modified_nanoseconds, std::move(entry.name));
    }
  }
  return unfinished;
}

bool contains(const Unfinished& unfinished, const fs::path& path, const File& file) {
  const FileIdentity& found = file.identity();
  return unfinished.contains({found.inode, found.modified_nanoseconds, path.filename().native()});
}

// A set of shards, all open, of one save.
struct OpenedSet {
  ShardIndex index;
  std::vector<std::shared_ptr<const File>> shards;
  std::shared_ptr<const File> file;  // of the index
};

bool is_unchanged(const fs::path& path, const FileIdentity& identity) {
  try {
    return File::open(path).identity() == identity;
  } catch (const Error&) {
    return false;
  }
}

std::shared_ptr<const File> open_shard(const fs::path& index, const std::string& name) {
  const fs::path path = index.parent_path() / name;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    throw Error(ErrorKind::kNotFound,
                fmt::format("{}: the shard {} that it lists does not exist", index.native(), in_quotes(name)), ENOENT);
  }
  return std::make_shared<const File>(File::open(path));
}

// A save that commits between the reading of the index and the opening of its shards has other shards: then all is
// looked at again, so that what is opened is of one save.
OpenedSet open_set(const fs::path& path) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto file = std::make_shared<const File>(File::open(path));
    OpenedSet set{parse_shard_index(FileBytes(*file)), {}, file};
    try {
      for (const std::string& name : set.index.files) set.shards.push_back(open_shard(path, name));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kNotFound || is_unchanged(path, file->identity())) throw;
      continue;
    }
    if (is_unchanged(path, file->identity())) return set;
  }
  throw Error(ErrorKind::kIo,
              fmt::format("{}: is replaced again and again while its shards are opened", path.native()));
}

class Opener {
 public:
  // `parse` turns a file's bytes into its tensors.
  Opener(Reader::State& state, LayoutParser parse) : state_(state), parse_(parse) {}

  void open(const fs::path& path) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
      open_directory(path);
    } else if (path.native().ends_with(".json")) {
      open_index(path);
    } else {
      open_file(path);
    }
  }

  // Refuses a name that two files have.
  void check_duplicates() {
    if (state_.files.size() < 2) return;
    NameMap<std::uint32_t> seen;
    seen.reserve(state_.tensors.size());
    for (const TensorInfo& tensor : state_.tensors) {
      const auto [first, fresh] = seen.emplace(tensor.name, tensor.file);
      if (fresh) continue;
      throw_format(state_.files[tensor.file]->path(), "tensor {} is also in {}", in_quotes(tensor.name),
                   state_.files[first->second]->path());
    }
  }

 private:
  // `wanted`: which of its tensors to take.
  template <typename Wanted>
  void open_file(const fs::path& path, std::shared_ptr<const File> file, const Wanted& wanted) {
    refuse_second_opening(path);
    Layout layout = parse_(FileBytes(*file));
    const std::size_t before = layout.tensors.size() + layout.packed_tensors.size();
    const auto unwanted = [&](const TensorInfo& tensor) { return !wanted(tensor.name); };
    std::erase_if(layout.tensors, unwanted);
    std::erase_if(layout.packed_tensors, unwanted);
    const bool partial = layout.tensors.size() + layout.packed_tensors.size() < before;
    state_.add(path, std::move(file), std::move(layout), partial);
  }

  void open_file(const fs::path& path) {
    open_file(path, std::make_shared<const File>(File::open(path)), [](const std::string&) { return true; });
  }

  void refuse_second_opening(const fs::path& path) {
    if (!opened_.insert(path.lexically_normal()).second) throw_argument("{}: listed twice", path.native());
  }

  // A save may take what was listed away before it is opened. What took its place was there before that.
  void open_directory(const fs::path& directory) {
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const Listing listing = list_directory(directory);
      const std::size_t before = state_.files.size();
      try {
        if (open_listing(directory, listing)) return;
      } catch (const Error& error) {
        const bool is_gone = error.kind() == ErrorKind::kNotFound && state_.files.size() == before;
        if (!is_gone || list_directory(directory) == listing) throw;
      }
    }
    throw Error(ErrorKind::kIo, fmt::format("{}: changes again and again while it is opened", directory.native()));
  }

  // False when what was opened is no longer all that is there, and nothing was done.
  bool open_listing(const fs::path& directory, const Listing& listing) {
    if (!listing.indexes.empty()) {
      open_index(choose_index(directory, listing.indexes));
      return true;
    }
    refuse_chunks(directory, "dcp.json");
    const Unfinished unfinished = find_unfinished(listing);
    // A converted checkpoint beside its source would have every tensor twice: the first suffix that is there counts.
    for (const std::string_view suffix : data_suffixes()) {
      const auto found = listing.files.find(suffix);
      if (found == listing.files.end()) continue;
      std::vector<std::pair<fs::path, std::shared_ptr<const File>>> files;
      for (const fs::path& path : found->second) {
        auto file = std::make_shared<const File>(File::open(path));
        if (!contains(unfinished, path, *file)) files.emplace_back(path, std::move(file));
      }
      // Shards of a save whose journal was gone by then have their index now, or are gone too.
      if (list_directory(directory) != listing) return false;
      for (auto& [path, file] : files) open_file(path, std::move(file), [](const std::string&) { return true; });
      if (!files.empty()) return true;
    }
    refuse_chunks(directory, ".metadata");
    throw Error(ErrorKind::kNotFound, fmt::format("{}: the directory has no *{} file and no *{}", directory.native(),
                                                  fmt::join(data_suffixes(), " or *"), kIndexSuffix));
  }

  // Files with the same names for different tensors, or of a format that is read by its metadata alone.
  static void refuse_chunks(const fs::path& directory, const char* metadata) {
    std::error_code ignored;
    if (!fs::exists(directory / metadata, ignored)) return;
    throw Error(
        ErrorKind::kUnsupported,
        fmt::format("{}: a checkpoint of torch.distributed.checkpoint, with chunks of tensors: penstock.dcp reads "
                    "it, and `penstock convert` makes a file of it",
                    directory.native()));
  }

  static fs::path choose_index(const fs::path& directory, const std::vector<fs::path>& indexes) {
    if (indexes.size() == 1) return indexes.front();
    const auto preferred = std::find(indexes.begin(), indexes.end(), directory / kPreferredIndex);
    if (preferred != indexes.end()) return *preferred;
    throw_argument("{}: the directory has {} index files, name the one to open", directory.native(), indexes.size());
  }

  void open_index(const fs::path& path) {
    const OpenedSet set = open_set(path);
    const ShardIndex& index = set.index;
    const std::size_t first_tensor = state_.tensors.size();
    for (std::uint32_t shard = 0; shard < index.files.size(); ++shard) {
      // A tensor that the index gives to another shard is a stale copy; one that it does not list is kept.
      open_file(path.parent_path() / index.files[shard], set.shards[shard], [&](const std::string& name) {
        const auto entry = index.weight_map.find(name);
        return entry == index.weight_map.end() || entry->second == shard;
      });
    }
    for (const auto& [key, value] : index.metadata) state_.metadata.emplace(key, value);
    check_index(path, index, first_tensor);
    state_.indexes.push_back(set.file);
  }

  void check_index(const fs::path& path, const ShardIndex& index, std::size_t first_tensor) {
    std::set<std::string_view> found;
    for (std::size_t i = first_tensor; i < state_.tensors.size(); ++i) found.insert(state_.tensors[i].name);
    for (const auto& [name, shard] : index.weight_map) {
      if (found.contains(name)) continue;
      throw_format(path.native(), "lists tensor {} in {}, which does not have it", in_quotes(name),
                   in_quotes(index.files[shard]));
    }
  }

  Reader::State& state_;
  const LayoutParser parse_;
  std::set<fs::path> opened_;
};

}  // namespace

std::shared_ptr<Reader::State> open_checkpoint(std::span<const fs::path> paths, LayoutParser parse) {
  if (paths.empty()) throw_argument("no file was named");
  auto state = std::make_shared<Reader::State>();
  Opener opener(*state, parse);
  for (const fs::path& path : paths) opener.open(path);
  opener.check_duplicates();
  return state;
}

void Reader::State::add(const fs::path& path, std::shared_ptr<const File> file, Layout layout, bool is_partial) {
  const auto add_tensors = [this](std::vector<TensorInfo>& added) {
    for (TensorInfo& tensor : added) tensor.file = static_cast<std::uint32_t>(files.size());
    if (tensors.empty()) {
      tensors = std::move(added);  // most have one file: a million tensors are there once
      return;
    }
    tensors.reserve(tensors.size() + added.size());
    std::move(added.begin(), added.end(), std::back_inserter(tensors));
  };
  add_tensors(layout.tensors);
  metadata.insert(layout.metadata.begin(), layout.metadata.end());
  infos.push_back({path, file->size(), layout.format, std::move(layout.metadata), std::move(layout.opaque)});
  files.push_back(file);
  partial.push_back(is_partial);
  unpacked.push_back(nullptr);
  if (layout.packed.empty()) return;
  add_tensors(layout.packed_tensors);
  auto memory = std::make_shared<const UnpackedFile>(std::move(file), std::move(layout.packed));
  infos.push_back({path, memory->file()->size(), std::move(layout.format), {}, {}, /*unpacked=*/true});
  files.push_back(memory->file());
  partial.push_back(is_partial);
  unpacked.push_back(std::move(memory));
}

const TensorInfo* Reader::State::find(std::string_view name) const {
  const auto& index = index_.get([this] {
    NameMap<std::size_t> places;
    places.reserve(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) places.emplace(tensors[i].name, i);
    return places;
  });
  const auto entry = index.find(name);
  return entry == index.end() ? nullptr : &tensors[entry->second];
}

std::size_t Reader::State::require(std::string_view name) const {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) {
    throw Error(ErrorKind::kNotFound, fmt::format("{}: has no tensor {}", describe_files(), in_quotes(name)));
  }
  return static_cast<std::size_t>(tensor - tensors.data());
}

std::string Reader::State::describe_files() const {
  const auto count = std::count(unpacked.begin(), unpacked.end(), nullptr);
  if (count == 1) return files.front()->path();
  return fmt::format("{} and {} more", files.front()->path(), count - 1);
}

std::vector<std::optional<std::uint32_t>> Reader::State::expected_checksums() const {
  std::vector<std::optional<std::uint32_t>> expected(tensors.size());
  for (std::uint32_t number = 0; number < infos.size(); ++number) {
    const auto entry = infos[number].metadata.find(std::string(kChecksumKey));
    // The checksums count every tensor of the file.
    if (entry == infos[number].metadata.end() || partial[number]) continue;
    const auto first =
        std::partition_point(tensors.begin(), tensors.end(), [&](const auto& t) { return t.file < number; });
    const auto last = std::partition_point(first, tensors.end(), [&](const auto& t) { return t.file == number; });
    const auto count = static_cast<std::size_t>(last - first);
    const auto checksums = parse_checksums(entry->second, count);
    if (!checksums) {
      throw_format(files[number]->path(), "metadata {}: expected {} checksums of 8 hex digits, found {} characters",
                   in_quotes(kChecksumKey), count, entry->second.size());
    }
    const auto at = static_cast<std::size_t>(first - tensors.begin());
    for (std::size_t i = 0; i < count; ++i) expected[at + i] = (*checksums)[i];
  }
  return expected;
}

}  // namespace penstock
