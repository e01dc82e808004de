// What a StreamFile is made of.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "api/aio/stream_file_blocks.h"
#include "api/save/file_writer.h"
#include "base/fork.h"
#include "device/device.h"
#include "io/new_file.h"
#include "penstock/stream_file.h"
#include "transfer/settings.h"
#include "transfer/write.h"

namespace penstock {

class StreamFile::State {
 public:
  // `settings` come from the options, but for tests, which bring engines of their own.
  State(const std::filesystem::path& path, const StreamOptions& options, Settings settings);
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { abandon(); }

  bool is_here() const noexcept { return forks_ == fork_count(); }

  void append(const std::byte* data, std::size_t nbytes);
  void reserve(std::uint64_t nbytes);
  void flush();
  void finish();
  void abandon() noexcept;

  std::uint64_t size() const noexcept { return size_; }
  std::size_t room() const noexcept;
  const std::string& path() const noexcept { return path_; }
  StreamStats stats() const;

 private:
  // Throws what made it unusable.
  void require_open() const;
  // Runs a step; when it fails the file is given up and the error kept.
  template <typename Step>
  void guarded(Step&& step);

  StreamBlocks& blocks();
  // Memory of a device is fetched by the thread that appends it.
  void append_from(Lanes& lanes, const std::byte* data, std::size_t nbytes);
  // Puts up to a block's worth behind what there is, by copy(place, nbytes). Gives how many bytes.
  template <typename Copy>
  std::size_t fill(std::size_t nbytes, const Copy& copy);
  void submit(const StreamWrite& write);
  void submit_current();
  void begin_writing();
  void reserve_ahead(std::uint64_t end);
  void write_rest();
  void publish();
  // Ends all work and lets go of what it needed; the counts stay.
  void release() noexcept;
  // "direct" or "buffered"; empty while nothing was written.
  const char* path_taken() const noexcept;
  NewFile& under_way() { return file_ ? file_->file() : *new_file_; }

  const std::uint64_t forks_ = fork_count();
  const std::string path_;
  const StreamOptions options_;
  Settings settings_;
  unsigned block_count_ = 1;
  Stopwatch watch_;

  std::optional<NewFile> new_file_;  // until the first block goes out
  std::optional<FileWriter> file_;   // from then on, while it is being written
  std::shared_ptr<StreamBlocks> blocks_;
  std::unique_ptr<Crew> crew_;

  std::byte* current_ = nullptr;  // the block that is being filled
  std::uint64_t filled_ = 0;
  std::uint64_t submitted_ = 0;  // bytes of the file that are written or on their way
  std::uint64_t size_ = 0;
  std::uint64_t reserved_ = 0;  // or, where nothing is, looked after
  bool may_reserve_ahead_ = true;

  const char* path_taken_ = "";  // once the file is let go of
  bool finished_ = false;
  std::exception_ptr error_;
  StreamStats stats_;
};

}  // namespace penstock
