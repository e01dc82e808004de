// GPUDirect Storage: what keeps it from being touched.
#include "device/gds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "testing/files.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A system that has everything, in a directory.
class GdsObstacle : public ::testing::Test {
 protected:
  GdsObstacle() {
    write("proc/modules", "nvidia_fs 16384 0\n");
    write("proc/driver/nvidia-fs/devcount", "2\n");
    write("dev/nvidia-fs0", "");
  }

  void write(const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories((root() / path).parent_path());
    std::ofstream(root() / path) << text;
  }
  void remove(const std::filesystem::path& path) { std::filesystem::remove(root() / path); }
  std::filesystem::path root() const { return directory_.path(); }

 private:
  testing::TempDir directory_;
};

TEST_F(GdsObstacle, there_is_none_where_all_parts_are_there) {
  EXPECT_THAT(gds_obstacle(true, root()), IsEmpty());
}

TEST_F(GdsObstacle, a_missing_device_comes_first) {
  remove("proc/modules");
  EXPECT_EQ(gds_obstacle(false, root()), "there is no device");
}

TEST_F(GdsObstacle, each_missing_part_is_named) {
  remove("dev/nvidia-fs0");
  EXPECT_THAT(gds_obstacle(true, root()), HasSubstr("/dev/nvidia-fs0 is missing"));
  remove("proc/driver/nvidia-fs/devcount");
  EXPECT_THAT(gds_obstacle(true, root()), HasSubstr("the module nvidia-fs is not loaded"));
  remove("proc/modules");
  EXPECT_THAT(gds_obstacle(true, root()), HasSubstr("/proc/modules is missing"));
}

TEST_F(GdsObstacle, who_insists_is_refused_only_where_cufile_would_wait_for_ever) {
  remove("dev/nvidia-fs0");
  remove("proc/driver/nvidia-fs/devcount");
  EXPECT_THAT(gds_danger(root()), IsEmpty());
  remove("proc/modules");
  EXPECT_THAT(gds_danger(root()), HasSubstr("/proc/modules is missing"));
}

TEST_F(GdsObstacle, a_count_of_devices_that_is_zero_or_none_is_one) {
  for (const char* text : {"0\n", "", "many\n", "-1\n"}) {
    write("proc/driver/nvidia-fs/devcount", text);
    EXPECT_THAT(gds_obstacle(true, root()), HasSubstr("nvidia-fs has no devices")) << text;
  }
}

}  // namespace
}  // namespace penstock
