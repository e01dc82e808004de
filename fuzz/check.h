// What a fuzz target demands of the code under test: a broken demand stops the run with the line it stands on.
#pragma once

#include <simdjson.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "penstock/error.h"

#define FUZZ_CHECK(condition)                                                            \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

namespace penstock::fuzz {

// Of a refusal: one line that begins with the file, whatever stands in it.
inline void check_message(const Error& error, bool may_be_unsupported = false) {
  const std::string_view message = error.what();
  FUZZ_CHECK(error.kind() == ErrorKind::kFormat ||
             (may_be_unsupported && error.kind() == ErrorKind::kUnsupportedFormat));
  FUZZ_CHECK(message.substr(0, 3) == "f: ");
  FUZZ_CHECK(message.find('\n') == std::string_view::npos);
  FUZZ_CHECK(message.size() < 1000);
  FUZZ_CHECK(simdjson::validate_utf8(message));
}

}  // namespace penstock::fuzz
