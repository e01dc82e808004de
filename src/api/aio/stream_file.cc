#include "penstock/stream_file.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstring>

#include "api/aio/stream_file_state.h"
#include "api/save/stale_seal.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/tuning.h"
#include "base/with_path.h"
#include "io/closing.h"

namespace penstock {
namespace {

constexpr std::uint64_t kUnknownSize = ~std::uint64_t{0};
constexpr std::uint64_t kPadding = 4 * kKiB;  // what direct I/O may want the last block rounded up to

// The crew's own staging is not used: blocks are filled before they are given to it.
constexpr std::uint64_t kNoStaging = 4 * kKiB;

bool can_spare(int fd, std::uint64_t nbytes) {
  struct statvfs status {};
  if (::fstatvfs(fd, &status) != 0) return false;
  return std::uint64_t{status.f_bavail} * status.f_frsize / tuning::kFreePerReservation >= nbytes;
}

// A process that reserves beyond this would get a signal.
std::uint64_t file_size_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnknownSize;
  return limit.rlim_cur;
}

}  // namespace

StreamFile::State::State(const std::filesystem::path& path, const StreamOptions& options, Settings settings)
    : path_(path.native()), options_(options), settings_(std::move(settings)) {
  std::uint64_t most =
      options_.max_staging == 0 ? kUnknownSize : std::max(options_.max_staging, tuning::kSmallestBlock);
  while (settings_.block_size > most) settings_.block_size /= 2;
  block_count_ = options_.overlap ? static_cast<unsigned>(std::min<std::uint64_t>(std::max(1u, settings_.queue_depth),
                                                                                  most / settings_.block_size))
                                  : 1;
  new_file_.emplace(NewFile::create(path));
}

void StreamFile::State::require_open() const {
  require_own_process(forks_, path_);
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (finished_) throw_argument("{}: is finished, nothing can be added to it", path_);
}

template <typename Step>
void StreamFile::State::guarded(Step&& step) {
  require_open();
  try {
    step();
  } catch (...) {
    error_ = std::current_exception();
    release();  // nothing borrowed is read any more
    throw;
  }
}

StreamBlocks& StreamFile::State::blocks() {
  if (blocks_ == nullptr) {
    blocks_ = std::make_shared<StreamBlocks>(*host_pool(nullptr), settings_.block_size, block_count_);
  }
  return *blocks_;
}

std::size_t StreamFile::State::room() const noexcept {
  return current_ == nullptr ? 0 : settings_.block_size - filled_ - 1;
}

template <typename Copy>
std::size_t StreamFile::State::fill(std::size_t nbytes, const Copy& copy) {
  const std::size_t step = std::min<std::size_t>(nbytes, settings_.block_size - filled_);
  if (current_ == nullptr) current_ = blocks().take();
  const Stopwatch watch;
  copy(current_ + filled_, step);
  blocks_->count_fill(watch.seconds());
  filled_ += step;
  if (filled_ == settings_.block_size) submit_current();
  return step;
}

void StreamFile::State::append(const std::byte* data, std::size_t nbytes) {
  guarded([&] {
    const MemoryPlace place = find_place(data);
    if (place.device != nullptr) {
      Lanes lanes(place.device);
      with_path(path_, [&] { lanes.wait_for(place.device->moment(nullptr)); });
      return append_from(lanes, data, nbytes);
    }
    const std::uint64_t block_size = settings_.block_size;
    bool borrowed = false;
    while (nbytes > 0) {
      std::size_t step = block_size;
      if (filled_ == 0 && nbytes >= block_size) {
        // Whole blocks are copied by the threads that write them, several at once.
        borrowed = true;
        submit({blocks().take(), data, submitted_, step, step});
      } else {
        step = fill(nbytes, [&](std::byte* to, std::size_t count) { std::memcpy(to, data, count); });
      }
      data += step;
      nbytes -= step;
      size_ += step;
    }
    if (borrowed) blocks().wait_copied();
    if (blocks_ != nullptr) blocks_->rethrow();
  });
}

void StreamFile::State::append_from(Lanes& lanes, const std::byte* data, std::size_t nbytes) {
  auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(data));
  while (nbytes > 0) {
    const std::size_t step = fill(
        nbytes, [&](std::byte* to, std::size_t count) { with_path(path_, [&] { lanes.fetch(to, address, count); }); });
    address += step;
    nbytes -= step;
    size_ += step;
  }
  if (blocks_ != nullptr) blocks_->rethrow();
}

// Pads what direct I/O wants padded; the file is cut to size in the end.
void StreamFile::State::submit_current() {
  begin_writing();
  const std::uint64_t length = align_up(filled_, file_->alignment());
  std::memset(current_ + filled_, 0, length - filled_);
  const StreamWrite write{std::exchange(current_, nullptr), nullptr, submitted_, std::exchange(filled_, 0), length};
  submit(write);
}

void StreamFile::State::submit(const StreamWrite& write) {
  begin_writing();
  reserve_ahead(write.offset + write.length);
  submitted_ += write.payload;
  std::vector<std::unique_ptr<Job>> jobs;
  jobs.push_back(blocks_->start(write));
  crew_->add(std::move(jobs));
}

// The first full block decides how the file is written.
void StreamFile::State::begin_writing() {
  if (file_) return;
  file_.emplace(std::move(*new_file_), WriteRequest{options_.method, Landing::kStaged}, kUnknownSize);
  new_file_.reset();
  blocks_->set_target(file_->target());
  Settings settings = settings_;
  settings.block_size = kNoStaging;
  settings.register_staging = false;
  settings.queue_depth = std::max(block_count_, settings.threads);
  crew_ = std::make_unique<Crew>(std::move(settings), host_pool(nullptr));
}

// Direct writes into space that is there already need not wait for each other. Other writes have none reserved, but
// they too wait for what earlier saves replaced, where little is left.
void StreamFile::State::reserve_ahead(std::uint64_t end) {
  if (end <= reserved_) return;
  const std::uint64_t step = std::clamp(reserved_, tuning::kFirstReservation, tuning::kLargestReservation);
  const std::uint64_t target = align_up(end + step, file_->alignment());
  reserved_ = target;
  if (!can_spare(under_way().fd(), step)) wait_for_closing();
  may_reserve_ahead_ =
      may_reserve_ahead_ && file_->route().direct && target <= file_size_limit() && can_spare(under_way().fd(), step);
  if (!may_reserve_ahead_) return;
  try {
    under_way().reserve(target);
  } catch (const Error&) {
    // It was more than is needed: whether there is enough is for the writes to say.
    may_reserve_ahead_ = false;
  }
}

void StreamFile::State::reserve(std::uint64_t nbytes) {
  guarded([&] {
    const auto end = checked_add(size_, nbytes);
    if (!end || *end > kUnknownSize / 4) throw_argument("{}: a file can't have {} bytes more", path_, nbytes);
    if (*end < settings_.block_size || *end <= reserved_) return;
    const std::uint64_t target = align_up(*end, kPadding);
    under_way().reserve(target);
    reserved_ = target;
  });
}

void StreamFile::State::flush() {
  guarded([&] {
    if (blocks_ == nullptr) return;
    blocks_->wait_written();
    blocks_->rethrow();
  });
}

void StreamFile::State::finish() {
  if (finished_) return;
  guarded([&] {
    write_rest();
    publish();
    release();
    finished_ = true;
    stats_.seconds = watch_.seconds();
  });
}

void StreamFile::State::write_rest() {
  if (filled_ > 0 && file_) submit_current();
  if (blocks_ != nullptr) {
    blocks_->wait_written();
    blocks_->rethrow();
  }
  if (file_) return;
  const Stopwatch watch;
  new_file_->write(0, current_, filled_);
  stats_.bytes_slow = filled_;
  stats_.slow_seconds = watch.seconds();
}

void StreamFile::State::publish() {
  const Stopwatch watch;
  under_way().finish(size_, options_.durable);
  remove_seal(under_way());
  under_way().publish();
  if (options_.durable) under_way().sync_name();
  const std::string_view own = file_name_of(path_);
  remove_dead_temporaries(under_way().directory(), [&](std::string_view name) { return name == own; });
  stats_.sync_seconds = watch.seconds();
}

void StreamFile::State::abandon() noexcept {
  if (finished_ || error_ != nullptr) return;
  error_ = std::make_exception_ptr(Error(ErrorKind::kCancelled, fmt::format("{}: was abandoned", path_)));
  release();
}

void StreamFile::State::release() noexcept {
  if (blocks_ != nullptr) blocks_->abandon();
  if (crew_ != nullptr) crew_->stop();
  stats_ = stats();
  crew_.reset();
  blocks_.reset();
  path_taken_ = path_taken();
  file_.reset();
  new_file_.reset();
  current_ = nullptr;
  filled_ = 0;
}

const char* StreamFile::State::path_taken() const noexcept {
  if (!file_) return path_taken_;
  return file_->route().direct ? "direct" : "buffered";
}

StreamStats StreamFile::State::stats() const {
  StreamStats stats = stats_;
  stats.bytes = size_;
  if (!finished_) stats.seconds = watch_.seconds();
  stats.path = path_taken();
  if (stats.bytes_slow > 0) stats.path = "buffered";
  if (crew_ != nullptr) stats.backend = crew_->backend();
  if (blocks_ != nullptr) {
    const StreamBlocks::Counts counts = blocks_->counts();
    stats.bytes_written = counts.bytes_written;
    stats.writes = counts.writes;
    stats.fills = counts.fills;
    stats.fill_seconds = counts.fill_seconds;
    stats.write_seconds = counts.write_seconds;
  }
  return stats;
}

StreamFile::StreamFile(const std::filesystem::path& path, const StreamOptions& options)
    : StreamFile(std::make_unique<State>(path, options, decide_settings(options.io, kUnknownSize, Direction::kWrite))) {
}
StreamFile::StreamFile(std::unique_ptr<State> state) : state_(of_this_process(std::move(state))) {}
StreamFile::StreamFile(StreamFile&&) noexcept = default;
StreamFile& StreamFile::operator=(StreamFile&&) noexcept = default;
StreamFile::~StreamFile() = default;

void StreamFile::append(const void* data, std::size_t nbytes) {
  state_->append(static_cast<const std::byte*>(data), nbytes);
}
void StreamFile::reserve(std::uint64_t nbytes) {
  state_->reserve(nbytes);
}
void StreamFile::flush() {
  state_->flush();
}
void StreamFile::finish() {
  state_->finish();
}
void StreamFile::abandon() noexcept {
  if (state_->is_here()) state_->abandon();
}
std::uint64_t StreamFile::size() const noexcept {
  return state_->size();
}
std::size_t StreamFile::room() const noexcept {
  return state_->room();
}
const std::string& StreamFile::path() const noexcept {
  return state_->path();
}
StreamStats StreamFile::stats() const {
  return state_->stats();
}

}  // namespace penstock
