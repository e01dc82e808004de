// SetJournal: the lock and the notebook of whoever gives a set of files its names.
//
// It is a hidden file ".NAME.saving" beside the set. Who publishes holds an exclusive flock on it, so two saves of one
// name publish one after the other, and writes down which files are going to get a name and which are going to lose
// theirs, before either happens. A journal with content that nobody has locked is a dead saver's: the next one removes
// exactly what that saver left, and nothing that merely looks like it.
//
// Whether the dead saver's set was committed shows in the index: it is the file that the journal says. Then the old
// files that it lists go; else the new ones do. What an index that is there lists stays in any case, and so does what
// is called as no file of the set would be. A dead saver's journal is never written to, as it may be another user's: it
// is removed, and a new one made.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "format/set_change.h"

namespace penstock {

class SetJournal {
 public:
  // Waits until nobody else publishes under this name, and removes what a dead saver left. Throws Error.
  explicit SetJournal(const std::filesystem::path& set);
  SetJournal(const SetJournal&) = delete;
  SetJournal& operator=(const SetJournal&) = delete;
  // What was recorded and never finished is left to the next save.
  ~SetJournal();

  static bool exists(const std::filesystem::path& set);

  // Removes what a dead saver left, if there is one, and waits for nobody. Returns the names that are gone, the
  // journal's last. What only has a journal's name and is none stays.
  static std::vector<std::string> remove_dead(const std::filesystem::path& set);

  int directory() const noexcept { return directory_.get(); }

  // Before anything gets or loses a name. Throws Error.
  void record(const SetChange& change, bool durable);

  // All that was recorded is done, or undone.
  void finish() noexcept;

 private:
  SetJournal(const std::filesystem::path& set, UniqueFd directory, UniqueFd file);

  UniqueFd open_journal();
  void lock();
  bool is_named() const;
  bool is_trusted() const;
  bool recover();
  std::string read_text() const;
  void keep_used(std::vector<SetEntry>& dead) const;

  const std::filesystem::path set_;
  const std::string name_;
  UniqueFd directory_;
  UniqueFd file_;
  std::vector<std::string> recovered_;  // what a dead saver left and is gone now
  bool writable_ = false;
  bool recorded_ = false;
};

}  // namespace penstock
