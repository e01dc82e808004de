#include "api/load/digests.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "api/load/range_reader.h"
#include "base/error.h"
#include "base/sha.h"
#include "base/tuning.h"
#include "transfer/progress.h"

namespace penstock {
namespace {

constexpr std::uint64_t kHashedAtOnce = 4 * kMiB;

class Hashing {
 public:
  Hashing(std::span<const HashedFile> files, const HashObserver& observe)
      : files_(files), observe_(observe), digests_(files.size()) {
    for (const HashedFile& each : files) total_ += each.file->size();
  }

  std::vector<std::string> run(const ProgressFunction& progress) {
    const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
    {
      std::vector<std::jthread> threads;
      left_ = std::min(files_.size(), cores);
      for (std::size_t i = left_; i > 0; --i) threads.emplace_back([this] { work(); });
      wait(progress);
    }
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    if (stop_) throw Error(ErrorKind::kCancelled, "cancelled");
    for (const HashedFile& each : files_) each.file->check_unchanged();
    return std::move(digests_);
  }

 private:
  void wait(const ProgressFunction& progress) {
    const Stopwatch watch;
    std::unique_lock lock(mutex_);
    for (bool over = false; !over;) {
      over =
          ended_.wait_for(lock, std::chrono::duration<double>(tuning::kProgressSeconds), [this] { return left_ == 0; });
      lock.unlock();
      try {
        if (progress && !progress({done_, total_, watch.seconds()})) stop_ = true;
      } catch (...) {
        fail();
      }
      lock.lock();
      if (stop_) ended_.wait(lock, [this] { return left_ == 0; });
      over = over || stop_;
    }
  }

  void work() {
    try {
      for (std::size_t i = next_++; i < files_.size() && !stop_; i = next_++) hash(i);
    } catch (...) {
      fail();
    }
    const std::lock_guard lock(mutex_);
    if (--left_ == 0) ended_.notify_all();
  }

  void fail() {
    const std::lock_guard lock(failure_mutex_);
    if (failure_ == nullptr) failure_ = std::current_exception();
    stop_ = true;
  }

  void hash(std::size_t number) {
    const HashedFile& each = files_[number];
    if (each.kind == Digest::Kind::kSha256) {
      digests_[number] = digest(number, Sha256());
      return;
    }
    Sha1 sha;
    const std::string head = "blob " + std::to_string(each.file->size()) + '\0';
    sha.update(std::as_bytes(std::span(head)));
    digests_[number] = digest(number, sha);
  }

  template <typename Sha>
  std::string digest(std::size_t number, Sha sha) {
    const auto& file = files_[number].file;
    const RangeReader reader(file);
    for (std::uint64_t offset = 0; offset < file->size() && !stop_; offset += kHashedAtOnce) {
      const std::uint64_t nbytes = std::min(kHashedAtOnce, file->size() - offset);
      reader.read(offset, nbytes, [&](const std::byte* data) {
        const std::span<const std::byte> bytes(data, static_cast<std::size_t>(nbytes));
        sha.update(bytes);
        if (observe_) observe_(number, offset, bytes);
      });
      done_ += nbytes;
    }
    return sha.finish();
  }

  const std::span<const HashedFile> files_;
  const HashObserver& observe_;
  std::vector<std::string> digests_;
  std::uint64_t total_ = 0;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::uint64_t> done_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::size_t left_ = 0;  // threads
};

}  // namespace

std::vector<std::string> hash_files(std::span<const HashedFile> files, const ProgressFunction& progress,
                                    const HashObserver& observe) {
  if (files.empty()) return {};
  return Hashing(files, observe).run(progress);
}

std::vector<DigestProblem> check_digests(const Reader::State& state, const Proofs& proofs,
                                         const std::vector<bool>& wanted, const ProgressFunction& progress) {
  std::vector<HashedFile> files;
  std::vector<const Digest*> expected;
  std::vector<DigestProblem> places;
  const auto add = [&](const std::shared_ptr<const File>& file, const FileProof& proof, DigestProblem place) {
    if (proof.against != Against::kDigest) return;
    files.push_back({file, proof.digest->kind});
    expected.push_back(&*proof.digest);
    places.push_back(std::move(place));
  };
  for (std::uint32_t i = 0; i < state.files.size(); ++i) {
    if (wanted[i] && !state.unpacked[i]) add(state.files[i], proofs.files[i], {{}, i, false});
  }
  for (std::uint32_t i = 0; i < state.indexes.size(); ++i) add(state.indexes[i], proofs.indexes[i], {{}, i, true});
  const std::vector<std::string> found = hash_files(files, progress);
  std::vector<DigestProblem> problems;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (found[i] == expected[i]->hex) continue;
    places[i].text = fmt::format("{}: the file is corrupt: its {} is {}, {} {}", files[i].file->path(),
                                 files[i].kind == Digest::Kind::kSha256 ? "SHA-256" : "SHA-1 as git takes it", found[i],
                                 expected[i]->origin, expected[i]->hex);
    problems.push_back(std::move(places[i]));
  }
  return problems;
}

}  // namespace penstock
