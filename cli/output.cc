#include "output.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace penstock::cli {
namespace {

constexpr std::size_t kFlushAt = std::size_t{256} * 1024;

}  // namespace

void Output::write(std::string_view text) {
  buffer_ += text;
  if (buffer_.size() >= kFlushAt) flush();
}

void Output::flush() {
  std::string_view rest = buffer_;
  while (!rest.empty()) {
    const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) throw OutputClosed();
    if (written < 0) throw std::system_error(errno, std::generic_category(), "standard output");
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  buffer_.clear();
}

}  // namespace penstock::cli
