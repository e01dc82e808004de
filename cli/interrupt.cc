#include "interrupt.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "penstock/error.h"

namespace penstock::cli {
namespace {

using std::chrono::milliseconds;

// How long work with a scratch directory may take to stop by itself.
constexpr milliseconds kPatience{250};
// A second signal that is at least this much later means: now. (One key press can reach a process twice.)
constexpr milliseconds kSecondSignalAfter{1000};

struct State {
  std::atomic<int> signal_number{0};
  std::atomic<int> stoppable{0};
  std::mutex mutex;
  std::string scratch;  // empty: none; guarded by mutex
};

// Lives as long as the listening thread, which nothing joins: it must survive static destruction.
State& state() {
  static State& instance = *std::make_unique<State>().release();
  return instance;
}

std::string scratch_path() {
  const std::lock_guard lock(state().mutex);
  return state().scratch;
}

void set_scratch_path(const std::string& path) {
  const std::lock_guard lock(state().mutex);
  state().scratch = path;
}

// The work may still be creating files in there: try a few times.
void remove_tree(const std::filesystem::path& path) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) return;
    std::this_thread::sleep_for(milliseconds(5));
  }
}

[[noreturn]] void leave(int signal_number) {
  // Clears a progress bar that stands on the last line.
  if (isatty(STDERR_FILENO) == 1) [[maybe_unused]]
    const auto ignored = ::write(STDERR_FILENO, "\r\x1b[K", 4);
  _exit(128 + signal_number);
}

void handle(int signal_number) {
  if (state().stoppable.load() == 0) leave(signal_number);
  if (scratch_path().empty()) return;
  std::this_thread::sleep_for(kPatience);
  remove_tree(scratch_path());
  leave(signal_number);
}

void listen(sigset_t signals) {
  std::chrono::steady_clock::time_point first{};
  for (;;) {
    int signal_number = 0;
    if (sigwait(&signals, &signal_number) != 0) continue;
    const auto now = std::chrono::steady_clock::now();
    if (state().signal_number.exchange(signal_number) == 0) {
      first = now;
      handle(signal_number);
    } else if (now - first >= kSecondSignalAfter) {
      leave(signal_number);
    }
  }
}

// A signal that whoever started us chose to ignore (nohup, a background job) stays ignored.
bool is_ignored(int signal_number) {
  struct sigaction action {};
  return sigaction(signal_number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

void listen_for_interrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    if (!is_ignored(signal_number)) sigaddset(&signals, signal_number);
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread(listen, signals).detach();
}

int interrupted_by() noexcept {
  return state().signal_number.load();
}

void check_interrupt() {
  if (interrupted_by() != 0) throw Interrupted();
}

StoppableWork::StoppableWork() {
  ++state().stoppable;
}

StoppableWork::~StoppableWork() {
  // From here on nobody looks at the flag, so a signal that arrived too late to stop the work counts as usual.
  --state().stoppable;
}

ScratchDirectory::ScratchDirectory(const std::filesystem::path& parent) {
  std::string name = (parent / ".penstock-XXXXXX").string();
  ++state().stoppable;
  if (mkdtemp(name.data()) == nullptr) {
    const int error_number = errno;
    --state().stoppable;
    const std::string reason = std::generic_category().message(error_number);
    throw Error(ErrorKind::kIo, parent.string() + ": cannot make a temporary directory: " + reason, error_number);
  }
  path_ = name;
  set_scratch_path(name);
}

ScratchDirectory::~ScratchDirectory() {
  remove_tree(path_);
  set_scratch_path({});
  --state().stoppable;
}

}  // namespace penstock::cli
