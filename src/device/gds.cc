#include "device/gds.h"

#include <fmt/format.h>

#include <fstream>

namespace penstock {
namespace {

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

std::string gds_obstacle(bool has_device, const std::filesystem::path& root) {
  if (!has_device) return "there is no device";
  if (!is_there(root / "proc/modules")) return "/proc/modules is missing, and cuFile waits for it without end";
  std::ifstream file(root / "proc/driver/nvidia-fs/devcount");
  if (!file) return "/proc/driver/nvidia-fs/devcount is missing: the module nvidia-fs is not loaded";
  int count = 0;
  if (!(file >> count) || count <= 0) return "nvidia-fs has no devices (/proc/driver/nvidia-fs/devcount)";
  if (!is_there(root / "dev/nvidia-fs0")) return "/dev/nvidia-fs0 is missing, as in containers that are not given it";
  return "";
}

}  // namespace penstock
