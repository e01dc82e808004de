// FileWriter: the bytes of one new file, from the parts of a layout to the drive.
//
// Asks once what drive and filesystem can do, decides the route, and writes whatever parts it is given on it. The file
// has no name before publish() (see io/new_file.h). Used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "io/new_file.h"
#include "penstock/options.h"
#include "plan/route.h"
#include "transfer/crew.h"
#include "transfer/write.h"

namespace penstock {

WriteRequest write_request(const SaveOptions& options);

class FileWriter {
 public:
  // Is given the bytes done; stops the work by returning false.
  using Watch = std::function<bool(std::uint64_t)>;

  // `nbytes`: of the tensors. `from_image`: the file is going to be written from one stretch of memory.
  FileWriter(NewFile file, const WriteRequest& request, std::uint64_t nbytes, bool from_image = false);

  const WriteRoute& route() const noexcept { return route_; }
  // Of what is written by different processes, or at different times.
  std::uint64_t alignment() const noexcept { return alignment_.offset; }
  NewFile& file() noexcept { return file_; }
  // For those who have blocks of their own.
  WriteTarget target() const;

  // Devices may write what lies on them by themselves. They open the file by name, so it gets a hidden one.
  void use_gds(std::shared_ptr<GdsUse> gds);

  // Reserves the file's space: a full disk is met before any data is moved.
  void reserve(std::uint64_t file_size);

  // Writes parts and waits for them. `observe` (optional) sees every piece; its owner is the part's number. `keep`:
  // what the parts' memory belongs to, where it is ours. `done` bytes of the file were written before.
  void write(Crew& crew, std::span<const WritePart> parts, PieceObserver observe, const Watch& watch,
             std::uint64_t done = 0, std::shared_ptr<const void> keep = {});

  // Sets the final size and, when asked to, syncs. `keep_going` is asked while that takes long.
  void finish(std::uint64_t file_size, bool durable, const std::function<bool()>& keep_going);

 private:
  NewFile file_;
  DirectAlignment alignment_{1, 1};
  WriteRoute route_;
  std::shared_ptr<GdsUse> gds_;
};

// Where stretches of memory that the kernel reads have to start: a page, or what direct I/O needs.
std::uint64_t interior_alignment(const FileWriter& writer);

}  // namespace penstock
