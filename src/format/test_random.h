// Random numbers and names for property tests, the same in every run.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace penstock::test {

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t limit) { return engine_() % limit; }

  std::string name() {
    static const std::vector<std::string> kPieces = {"a",  "b",    ".",      "0",      "\"",         "\\",
                                                     "\n", "\x01", "\u00e9", "\u20ac", "\U0001d11e", "/"};
    std::string text;
    for (std::uint64_t i = below(6); i > 0; --i) text += kPieces[below(kPieces.size())];
    return text;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace penstock::test
