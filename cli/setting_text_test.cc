#include "setting_text.h"

#include <gtest/gtest.h>

#include "units.h"

namespace penstock::cli {
namespace {

TEST(SettingText, a_read_setting_is_told_in_every_language) {
  Setting setting;
  setting.io = {.backend = Backend::kUring, .block_size = 2 * kMiB, .queue_depth = 8};
  EXPECT_EQ(format_setting(setting), "uring       2 MiB x 8");
  EXPECT_EQ(environment_for(setting), "PENSTOCK_BACKEND=uring PENSTOCK_BLOCK_SIZE=2M PENSTOCK_QUEUE_DEPTH=8");
  EXPECT_EQ(cpp_for(setting), "options.io = {.backend = Backend::kUring, .block_size = 2 << 20, .queue_depth = 8};");
  EXPECT_EQ(python_for(setting), "backend=\"uring\", block_size=\"2MiB\", queue_depth=8");
}

TEST(SettingText, a_write_setting_names_its_method) {
  Setting setting;
  setting.io = {.block_size = 512 * kKiB, .queue_depth = 4};
  setting.method = WriteMethod::kUncached;
  EXPECT_EQ(format_setting(setting), "uncached  512 KiB x 4");
  EXPECT_EQ(environment_for(setting), "PENSTOCK_BLOCK_SIZE=512K PENSTOCK_QUEUE_DEPTH=4");
  EXPECT_EQ(cpp_for(setting),
            "options.method = WriteMethod::kUncached; options.io = {.block_size = 512 << 10, .queue_depth = 4};");
  EXPECT_EQ(python_for(setting), "method=\"uncached\", block_size=\"512KiB\", queue_depth=4");
}

TEST(SettingText, the_default_has_no_figures) {
  Setting setting;
  setting.is_default = true;
  EXPECT_EQ(format_setting(setting), "default");
}

}  // namespace
}  // namespace penstock::cli
