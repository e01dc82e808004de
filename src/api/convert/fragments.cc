// Which files are FastPersist's fragments of one torch file.
#include <algorithm>
#include <cerrno>
#include <map>
#include <system_error>

#include "api/convert/convert_source.h"
#include "api/files/file_bytes.h"
#include "base/error.h"
#include "format/detect.h"
#include "format/torch_fragments.h"
#include "io/file.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using torch::FragmentName;

std::optional<FragmentName> name_of(const fs::path& path) {
  return torch::parse_fragment_name(path.filename().native());
}

// The files of a directory that a Reader would take.
bool is_checkpoint_file(const std::string& name) {
  if (name.ends_with(".index.json")) return true;
  return std::any_of(data_suffixes().begin(), data_suffixes().end(),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

// Those of a directory by what they are fragments of; none at all where there is a checkpoint beside them.
std::map<std::string, std::vector<fs::path>> list_fragments(const fs::path& directory) {
  std::map<std::string, std::vector<fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().native();
    if (name.starts_with('.')) continue;
    if (is_checkpoint_file(name)) return {};
    if (const auto parsed = torch::parse_fragment_name(name)) found[parsed->stem].push_back(it->path());
  }
  if (error) throw_errno(directory.native(), "cannot list the directory", error.value());
  return found;
}

std::vector<fs::path> find_in_directory(const fs::path& directory) {
  const auto found = list_fragments(directory);
  if (found.size() > 1) {
    throw_argument("{}: the directory has the fragments of {} files, {} and {} among them; name those of one",
                   directory.native(), found.size(), in_quotes(found.begin()->first),
                   in_quotes(std::next(found.begin())->first));
  }
  return found.empty() ? std::vector<fs::path>{} : found.begin()->second;
}

std::vector<fs::path> find_by_stem(const fs::path& path) {
  const fs::path directory = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const auto parsed = name_of(it->path());
    if (parsed && parsed->stem == path.filename().native()) found.push_back(path.parent_path() / it->path().filename());
  }
  return found;
}

std::vector<fs::path> find_of_one(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) return find_in_directory(path);
  if (!fs::exists(status)) return find_by_stem(path);
  const auto name = name_of(path);
  if (!name || !fs::is_regular_file(status)) return {};
  const File file = File::open(path);
  const FileBytes bytes(file);
  const bool found = name->count == 1 ? torch::looks_like_legacy(bytes) : torch::is_fragment(bytes, *name);
  return found ? std::vector{path} : std::vector<fs::path>{};
}

std::vector<fs::path> take_listed(std::span<const fs::path> paths) {
  const auto first = std::find_if(paths.begin(), paths.end(), [](const fs::path& path) { return name_of(path); });
  if (first == paths.end()) return {};
  for (const fs::path& path : paths) {
    if (name_of(path)) continue;
    throw_argument("{}: not a fragment, as {} beside it is by its name", path.native(), first->native());
  }
  return {paths.begin(), paths.end()};
}

// By rank; every one there once.
std::vector<fs::path> put_in_order(const std::vector<fs::path>& found) {
  const FragmentName first = *name_of(found.front());
  std::vector<fs::path> ordered(found.size());
  std::map<std::uint32_t, const fs::path*> by_rank;
  for (const fs::path& path : found) {
    const FragmentName name = *name_of(path);
    if (name.stem != first.stem) {
      throw_argument("{}: a fragment of {}, and {} is one of {}", path.native(), in_quotes(name.stem),
                     found.front().native(), in_quotes(first.stem));
    }
    if (name.count != first.count) {
      throw_argument("{}: one of {} fragments, and {} is one of {}: they are not of one save", path.native(),
                     name.count, found.front().native(), first.count);
    }
    const auto [known, fresh] = by_rank.emplace(name.rank, &path);
    if (!fresh) {
      throw_argument("{}: fragment {} of {}, and so is {}", path.native(), name.rank, name.count,
                     known->second->native());
    }
  }
  for (std::uint32_t rank = 0; rank < first.count; ++rank) {
    const auto known = by_rank.find(rank);
    if (known == by_rank.end()) {
      const fs::path missing = found.front().parent_path() / torch::fragment_name(first.stem, rank, first.count);
      throw Error(ErrorKind::kNotFound,
                  fmt::format("{}: missing; {} was written in {} fragments, and {} of them are here", missing.native(),
                              in_quotes(first.stem), first.count, found.size()),
                  ENOENT);
    }
    ordered[rank] = *known->second;
  }
  return ordered;
}

}  // namespace

std::vector<fs::path> find_fragments(std::span<const fs::path> sources) {
  std::vector<fs::path> found = sources.size() == 1 ? find_of_one(sources.front()) : take_listed(sources);
  std::sort(found.begin(), found.end());
  return found.empty() ? found : put_in_order(found);
}

}  // namespace penstock
