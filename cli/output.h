// Standard output, buffered: a listing of 100,000 tensors is a few dozen writes. Errors of the stream are not lost.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace penstock::cli {

// The reader of our pipe has gone (`| head`): the command ends silently.
class OutputClosed : public std::runtime_error {
 public:
  OutputClosed() : std::runtime_error("standard output was closed") {}
};

class Output {
 public:
  explicit Output(int descriptor) : descriptor_(descriptor) {}
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void write(std::string_view text);

  template <typename... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    write(fmt::format(format, std::forward<Args>(args)...));
  }

  // Hands everything to the system. Throws OutputClosed, or std::system_error when the stream can't take it. What was
  // not flushed is dropped by the destructor: an interrupted command doesn't print half a table.
  void flush();

 private:
  int descriptor_;
  std::string buffer_;
};

}  // namespace penstock::cli
