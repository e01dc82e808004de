// How errors are made: one line, "PATH: what happened", with the errno's text where there is one.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "penstock/error.h"

namespace penstock {

// The text of an errno: "No space left on device".
std::string errno_text(int error_number);

// The kind that an errno stands for: ENOENT is kNotFound, ENOSPC is kNoSpace, most are kIo.
ErrorKind errno_kind(int error_number) noexcept;

// Throws Error of the errno's kind: "PATH: ACTION: No such file or directory".
[[noreturn]] void throw_errno(std::string_view path, std::string_view action, int error_number);

// Throws Error(kFormat): "PATH: MESSAGE".
template <typename... Args>
[[noreturn]] void throw_format(std::string_view path, fmt::format_string<Args...> message, Args&&... args) {
  throw Error(ErrorKind::kFormat, fmt::format("{}: {}", path, fmt::format(message, std::forward<Args>(args)...)));
}

// Throws Error(kUnsupportedFormat): "PATH: MESSAGE".
template <typename... Args>
[[noreturn]] void throw_unsupported(std::string_view path, fmt::format_string<Args...> message, Args&&... args) {
  throw Error(ErrorKind::kUnsupportedFormat,
              fmt::format("{}: {}", path, fmt::format(message, std::forward<Args>(args)...)));
}

// Throws Error(kArgument) with the message alone.
template <typename... Args>
[[noreturn]] void throw_argument(fmt::format_string<Args...> message, Args&&... args) {
  throw Error(ErrorKind::kArgument, fmt::format(message, std::forward<Args>(args)...));
}

// Untrusted text made fit for a message: quoted, control characters and bad UTF-8 escaped, long text cut.
std::string in_quotes(std::string_view text);

}  // namespace penstock
