#include "device/gds.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

namespace penstock {
namespace {

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

std::filesystem::path gds_root() {
  const char* named = std::getenv("PENSTOCK_GDS_ROOT");
  return named != nullptr && *named != '\0' ? named : "/";
}

std::string gds_danger(const std::filesystem::path& root) {
  return is_there(root / "proc/modules") ? "" : "/proc/modules is missing, and cuFile waits for it without end";
}

std::string gds_obstacle(bool has_device, const std::filesystem::path& root) {
  if (!has_device) return "there is no device";
  if (std::string danger = gds_danger(root); !danger.empty()) return danger;
  std::ifstream file(root / "proc/driver/nvidia-fs/devcount");
  if (!file) return "/proc/driver/nvidia-fs/devcount is missing: the module nvidia-fs is not loaded";
  int count = 0;
  if (!(file >> count) || count <= 0) return "nvidia-fs has no devices (/proc/driver/nvidia-fs/devcount)";
  if (!is_there(root / "dev/nvidia-fs0")) return "/dev/nvidia-fs0 is missing, as in containers that are not given it";
  return "";
}

}  // namespace penstock
