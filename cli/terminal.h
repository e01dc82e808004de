// What a stream can show, and coloured text for it. Colours and symbols appear on a terminal only (NO_COLOR and
// TERM=dumb are respected); in a pipe everything is plain ASCII but for what the file itself says.
#pragma once

#include <string>
#include <string_view>

namespace penstock::cli {

enum class ColorChoice { kAuto, kAlways, kNever };

enum class Tone { kPlain, kBold, kDim, kAccent, kGood, kWarning, kBad };

struct Terminal {
  bool interactive = false;  // a terminal whose lines can be redrawn
  bool colors = false;
  bool unicode = false;
  unsigned width = 80;  // columns of a terminal; 0: no terminal, so lines may be as long as they like

  std::string paint(Tone tone, std::string_view text) const;

  // A mark for "fine" and "not fine": a sign where it can be shown, else a word.
  std::string good_mark() const;
  std::string bad_mark() const;
};

// Looks at a descriptor (1 or 2) and the environment.
Terminal inspect_terminal(int descriptor, ColorChoice choice);

}  // namespace penstock::cli
