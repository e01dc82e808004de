#include "penstock/format.h"

#include "api/files/file_bytes.h"
#include "format/detect.h"

namespace penstock {
namespace {

std::optional<std::string> or_nothing(std::string_view name) {
  return name.empty() ? std::nullopt : std::optional<std::string>(name);
}

}  // namespace

std::optional<std::string> detect_format(const std::filesystem::path& path) {
  const File file = File::open(path);
  return or_nothing(format_by_bytes(FileBytes(file)));
}

std::optional<std::string> format_for_suffix(const std::filesystem::path& path) {
  return or_nothing(format_by_suffix(path.native()));
}

}  // namespace penstock
