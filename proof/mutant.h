// What mutants.py writes into sources: each operator and the one that it becomes when its mutant is on.
#pragma once

namespace mutants {

extern int on;               // the number of the mutant that is on; 0: none
extern unsigned char* seen;  // by number: whether it would have been asked

inline bool is_on(int number) noexcept {
  seen[number] = 1;
  return on == number;
}

#define MUTANT(name, op, other)                  \
  template <int kNumber, typename L, typename R> \
  auto name(const L& left, const R& right) {     \
    if (is_on(kNumber)) return left other right; \
    return left op right;                        \
  }
MUTANT(less, <, <=)
MUTANT(less_equal, <=, <)
MUTANT(greater, >, >=)
MUTANT(greater_equal, >=, >)
MUTANT(equal, ==, !=)
MUTANT(not_equal, !=, ==)
MUTANT(plus, +, -)
MUTANT(minus, -, +)
MUTANT(times, *, /)
MUTANT(divided, /, *)
MUTANT(modulo, %, /)
MUTANT(left, <<, >>)
MUTANT(right, >>, <<)
MUTANT(bit_and, &, |)
MUTANT(bit_or, |, &)
#undef MUTANT

}  // namespace mutants
