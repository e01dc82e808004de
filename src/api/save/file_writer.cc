#include "api/save/file_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <future>
#include <system_error>
#include <thread>

#include "base/bytes.h"
#include "base/error.h"
#include "base/page.h"
#include "base/unique_fd.h"
#include "io/block_device.h"
#include "transfer/progress.h"
#include "transfer/settings.h"

namespace penstock {
namespace {

// Syncs on a thread of its own, so that the caller stays able to stop: a file of which much is still in the page cache
// can take seconds. A sync that is given up goes on by itself on a second descriptor; its file has no name and will not
// get one.
void sync_watched(NewFile& file, const std::function<bool()>& keep_going) {
  UniqueFd copy(::dup(file.fd()));
  if (!copy) return;  // finish() syncs, unwatched
  std::promise<int> promise;
  std::future<int> synced = promise.get_future();
  try {
    std::thread([fd = std::move(copy), done = std::move(promise)]() mutable {
      done.set_value(::fsync(fd.get()) == 0 ? 0 : errno);
    }).detach();
  } catch (const std::system_error&) {
    return;
  }
  while (synced.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
    if (!keep_going()) throw Error(ErrorKind::kCancelled, "cancelled");
  }
  // The kernel tells of a lost write once: the sync in finish() would not hear of it again.
  if (const int error_number = synced.get(); error_number != 0) {
    throw_errno(file.path(), "sync failed, the data may not have reached the drive", error_number);
  }
}

}  // namespace

WriteRequest write_request(const SaveOptions& options) {
  return {options.method, decide_landing(options.landing)};
}

FileWriter::FileWriter(NewFile file, const WriteRequest& request, std::uint64_t nbytes, bool from_image)
    : file_(std::move(file)) {
  WriteFacts facts{nbytes, false, false, from_image};
  if (wants_direct(request, nbytes)) {
    if (const auto alignment = file_.use_direct()) {
      facts.direct = true;
      alignment_ = *alignment;
      facts.on_virtual_drive = on_virtual_drive(file_.fd());
    }
  }
  route_ = decide_write(request, facts);
}

WriteTarget FileWriter::target() const {
  WriteTarget target{file_.path(), file_.fd(), route_.direct, alignment_, route_.straight};
  target.gds = gds_;
  return target;
}

void FileWriter::use_gds(std::shared_ptr<GdsUse> gds) {
  gds_ = std::move(gds);
  if (gds_ == nullptr || !gds_->is_on() || !route_.direct) return;
  try {
    file_.take_name();
  } catch (const Error& error) {
    gds_->note_staged(error.what());
    gds_ = nullptr;
  }
}

void FileWriter::reserve(std::uint64_t file_size) {
  // A small file's space is not worth asking for.
  if (route_.reason != WriteReason::kSmall) file_.reserve(align_up(file_size, alignment_.offset));
}

void FileWriter::write(Crew& crew, std::span<const WritePart> parts, PieceObserver observe, const Watch& watch,
                       std::uint64_t done, std::shared_ptr<const void> keep) {
  const auto batch = plan_write(target(), parts, crew.settings().block_size, std::move(observe));
  batch->keep = std::move(keep);
  const Stopwatch stopwatch;
  start_writing(crew, batch);
  wait_with_progress(
      *batch, [&](const Progress& now) { return watch(done + now.bytes_done); }, 0, stopwatch);
}

void FileWriter::finish(std::uint64_t file_size, bool durable, const std::function<bool()>& keep_going) {
  // Direct writes and small files leave the kernel nothing to do that would be worth watching.
  if (durable && !route_.direct && route_.reason != WriteReason::kSmall) sync_watched(file_, keep_going);
  file_.finish(file_size, durable);
}

std::uint64_t interior_alignment(const FileWriter& writer) {
  return std::max<std::uint64_t>(writer.alignment(), page_size());
}

}  // namespace penstock
