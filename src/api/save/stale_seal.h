// A seal says nothing of what takes its file's place: it goes before the new file gets the name. Whoever is killed in
// between leaves the old file without a seal, and never a new one with a wrong seal.
#pragma once

#include <string>

#include "format/seal.h"
#include "io/names.h"
#include "io/new_file.h"

namespace penstock {

inline void remove_seal(int directory, const std::string& file_name) {
  const std::string seal = seal_file_name(file_name);
  if (find_name(directory, seal)) remove_name(directory, seal);
}

// Of what is going to be replaced.
inline void remove_seal(const NewFile& file) {
  remove_seal(file.directory(), std::string(file_name_of(file.path())));
}

}  // namespace penstock
