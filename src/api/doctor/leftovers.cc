#include "penstock/leftovers.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>

#include "api/save/set_journal.h"
#include "base/error.h"
#include "format/set_change.h"
#include "io/hidden_directories.h"
#include "io/names.h"

namespace penstock {

namespace fs = std::filesystem;

std::vector<Leftover> remove_leftovers(const fs::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw_errno(directory.native(), "cannot open the directory", errno);
  const auto everybodys = [](std::string_view) { return true; };
  std::vector<Leftover> gone;
  for (const std::string& name : list_names(fd.get())) {
    if (!is_journal_name(name)) continue;
    for (const std::string& each : SetJournal::remove_dead(directory / saved_name_of_journal(name))) {
      gone.push_back({directory / each, false});
    }
  }
  for (const std::string& name : remove_dead_temporaries(fd.get(), everybodys))
    gone.push_back({directory / name, false});
  for (const DeadDirectory& each : remove_dead_directories(fd.get(), everybodys)) {
    gone.push_back({directory / each.name, each.restored});
  }
  std::sort(gone.begin(), gone.end(), [](const Leftover& a, const Leftover& b) { return a.path < b.path; });
  return gone;
}

}  // namespace penstock
