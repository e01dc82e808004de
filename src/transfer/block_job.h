// BlockJob: what every job over one block of a file has in common: its request, and what to say when that fails.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <string>

#include "base/error.h"
#include "transfer/crew.h"

namespace penstock {

// One block of a file, to be read or written.
struct BlockRequest {
  IoRequest::Operation operation = IoRequest::Operation::kRead;
  int fd = -1;
  std::byte* data = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t minimum = 0;    // bytes that must move: less than the length where a read reaches past the end
  std::uint32_t alignment = 1;  // of direct I/O
  int buffer_index = -1;        // of the registered buffer that `data` lies in, or -1
};

class BlockJob : public Job {
 public:
  NextStep failed(const Finished& finished, std::byte*, int, Transfer&) override {
    const ErrorKind kind = finished.ended_early ? ErrorKind::kChanged : errno_kind(finished.error_number);
    const std::string what = describe_failure(finished, operation_);
    throw Error(kind, fmt::format("{}: {}", path(), what), finished.error_number);
  }

 protected:
  explicit BlockJob(IoRequest::Operation operation) : operation_(operation) {}

  // Of the file, for messages.
  virtual const std::string& path() const noexcept = 0;

  static NextStep request(const BlockRequest& block, Transfer& transfer) {
    transfer.minimum = static_cast<std::uint32_t>(block.minimum);
    transfer.alignment = block.alignment;
    transfer.request.operation = block.operation;
    transfer.request.fd = block.fd;
    transfer.request.data = block.data;
    transfer.request.length = static_cast<std::uint32_t>(block.length);
    transfer.request.offset = block.offset;
    transfer.request.buffer_index = block.buffer_index;
    return NextStep::kTransfer;
  }

 private:
  const IoRequest::Operation operation_;
};

}  // namespace penstock
