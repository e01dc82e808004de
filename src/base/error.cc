#include "base/error.h"

#include <cerrno>
#include <system_error>

namespace penstock {
namespace {

constexpr std::size_t kLongestQuote = 120;

// Length of the UTF-8 sequence that starts at text[i]; 0 when it is not a valid one.
std::size_t utf8_length(std::string_view text, std::size_t i) noexcept {
  const auto lead = static_cast<unsigned char>(text[i]);
  const std::size_t length = lead < 0x80                   ? 1
                             : lead >= 0xC2 && lead < 0xE0 ? 2
                             : lead >= 0xE0 && lead < 0xF0 ? 3
                             : lead >= 0xF0 && lead < 0xF5 ? 4
                                                           : 0;
  if (length == 0 || i + length > text.size()) return 0;
  for (std::size_t k = 1; k < length; ++k) {
    if ((static_cast<unsigned char>(text[i + k]) & 0xC0) != 0x80) return 0;
  }
  const auto second = static_cast<unsigned char>(length > 1 ? text[i + 1] : 0);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool beyond =
      (lead == 0xED && second >= 0xA0) || (lead == 0xF4 && second >= 0x90);  // surrogates; over U+10FFFF
  if (overlong || beyond) return 0;
  return length;
}

}  // namespace

std::string errno_text(int error_number) {
  return std::generic_category().message(error_number);
}

ErrorKind errno_kind(int error_number) noexcept {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return ErrorKind::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return ErrorKind::kPermission;
    case EISDIR:
      return ErrorKind::kIsDirectory;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ErrorKind::kNoSpace;
    case ENOMEM:
      return ErrorKind::kMemory;
    default:
      return ErrorKind::kIo;
  }
}

void throw_errno(std::string_view path, std::string_view action, int error_number) {
  throw Error(errno_kind(error_number), fmt::format("{}: {}: {}", path, action, errno_text(error_number)),
              error_number);
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size();) {
    if (out.size() > kLongestQuote) return out + "...\"";
    const std::size_t length = utf8_length(text, i);
    const auto byte = static_cast<unsigned char>(text[i]);
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
      ++i;
      continue;
    }
    if (byte == '"' || byte == '\\') out += '\\';
    out.append(text, i, length);
    i += length;
  }
  return out + "\"";
}

}  // namespace penstock
