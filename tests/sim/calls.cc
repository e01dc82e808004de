#include "calls.h"

#include <pthread.h>
#include <sys/mman.h>

#include <charconv>
#include <cstring>
#include <mutex>
#include <vector>

#include "state.h"

namespace sim {
namespace {

struct Failure {
  std::string symbol;
  std::uint64_t nth = 1;
  bool every = false;  // from the nth on
  bool later = false;
  Result error = kSuccess;
};

struct Book {
  std::mutex mutex;
  std::vector<Symbol*> symbols;
  std::vector<Failure> failures;
  std::atomic<bool> armed{false};
  std::atomic<bool> initialized{false};
  std::atomic<bool> forked{false};
  // Shared with children, so that the parent sees what they do.
  std::atomic<std::uint64_t>* calls_after_fork = nullptr;
};

// Never destroyed: threads may still call while the process ends.
Book& book() {
  static Book& made = *[] {
    auto* const fresh = new Book;
    void* const page =
        mmap(nullptr, sizeof(std::atomic<std::uint64_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fresh->calls_after_fork = new (page) std::atomic<std::uint64_t>(0);
    return fresh;
  }();
  return made;
}

Entry take_failure(const char* symbol) {
  Entry entry;
  if (!book().armed) {
    return entry;
  }
  const std::lock_guard lock(book().mutex);
  for (Failure& failure : book().failures) {
    if (failure.symbol != symbol || failure.nth == 0) {
      continue;
    }
    const bool now = failure.nth == 1;
    if (!now || !failure.every) {
      --failure.nth;  // 0: has happened
    }
    if (now) {
      (failure.later ? entry.later : entry.now) = failure.error;
    }
  }
  return entry;
}

template <typename Number>
bool parse_number(const std::string& word, Number& number) {
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, number);
  return error == std::errc() && stop == end;
}

std::vector<std::string> split(const std::string& words, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(words);
  for (std::string part; std::getline(stream, part, separator);) {
    parts.push_back(part);
  }
  return parts;
}

bool parse_failure(const std::string& what, Failure& failure) {
  std::vector<std::string> words = split(what, ':');
  if (words.size() == 4 && words[3] == "async") {
    failure.later = true;
    words.pop_back();
  }
  if (words.size() != 3) {
    return false;
  }
  failure.symbol = words[0];
  failure.every = words[1].ends_with('+');
  if (failure.every) {
    words[1].pop_back();
  }
  return parse_number(words[1], failure.nth) && failure.nth > 0 && parse_number(words[2], failure.error);
}

void before_fork() {
  state().mutex.lock();
  book().mutex.lock();
}

void in_parent() {
  book().mutex.unlock();
  state().mutex.unlock();
}

void in_child() {
  book().forked = true;
  in_parent();
}

}  // namespace

Symbol::Symbol(const char* its_name) : name(its_name) {
  const std::lock_guard lock(book().mutex);
  book().symbols.push_back(this);
}

Entry enter_uninitialized(Symbol& symbol) {
  state();  // $PENSTOCK_SIM_FAIL counts from the first call on
  ++symbol.calls;
  return take_failure(symbol.name);
}

Entry enter(Symbol& symbol) {
  if (book().forked) {
    ++*book().calls_after_fork;
    return {.now = kNotInitialized};
  }
  const Entry entry = enter_uninitialized(symbol);
  return entry.now == kSuccess && !book().initialized ? Entry{.now = kNotInitialized} : entry;
}

bool mark_initialized() {
  if (book().forked) {
    ++*book().calls_after_fork;
    return false;
  }
  if (!book().initialized.exchange(true)) {
    pthread_atfork(before_fork, in_parent, in_child);
  }
  return true;
}

bool is_forked() {
  return book().forked;
}

bool arm_failures(const std::string& what) {
  std::vector<Failure> failures;
  for (const std::string& part : split(what, ',')) {
    if (!parse_failure(part, failures.emplace_back())) {
      return false;
    }
  }
  const std::lock_guard lock(book().mutex);
  for (Failure& failure : failures) {
    book().failures.push_back(std::move(failure));
  }
  book().armed = !book().failures.empty();
  return true;
}

void disarm_failures() {
  const std::lock_guard lock(book().mutex);
  book().failures.clear();
  book().armed = false;
}

std::uint64_t count_calls(const std::string& symbol) {
  const std::lock_guard lock(book().mutex);
  for (const Symbol* known : book().symbols) {
    if (known->name == symbol) {
      return known->calls;
    }
  }
  return 0;
}

std::uint64_t count_calls_after_fork() {
  return *book().calls_after_fork;
}

}  // namespace sim
