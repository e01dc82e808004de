// Checkpoints that share names, and those that lie inside other files, opened as one.
#include "penstock/side_by_side.h"

#include <gmock/gmock.h>

#include <fstream>

#include "penstock/writer.h"
#include "testing/errors.h"
#include "testing/files.h"

namespace penstock {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class SideBySideTest : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, std::int32_t value) {
    const std::vector<std::int32_t> values(100, value);
    SaveOptions options;
    options.checksums = true;
    Writer writer(directory_ / name, options);
    writer.add("weight", DType::kI32, {10, 10}, values.data());
    writer.commit();
    return directory_ / name;
  }

  std::vector<std::int32_t> load(const Reader& reader, const std::string& name, bool verify = false) {
    std::vector<std::int32_t> values(100);
    const Target target{name, std::as_writable_bytes(std::span(values)), {}, {}, {}};
    LoadOptions options;
    options.verify = verify ? Verify::kAny : Verify::kOff;
    reader.load_into({&target, 1}, options);
    return values;
  }

  testing::TempDir directory_;
};

TEST_F(SideBySideTest, tensors_of_one_name_are_told_apart_by_numbers) {
  const EmbeddedFile files[] = {{write("b.safetensors", 7), {}}, {write("a.safetensors", 8), {}}};
  const Reader reader = open_side_by_side(files);
  EXPECT_EQ(reader.files().size(), 2u);
  EXPECT_EQ(load(reader, "0/weight", /*verify=*/true), std::vector<std::int32_t>(100, 7));
  EXPECT_EQ(load(reader, "1/weight", /*verify=*/true), std::vector<std::int32_t>(100, 8));
}

TEST_F(SideBySideTest, checkpoints_inside_a_file_are_read_where_they_lie) {
  const std::string first = bytes_of(write("first.safetensors", 1));
  const std::string second = bytes_of(write("second.safetensors", 2));
  const auto path = directory_ / "both";
  std::ofstream(path, std::ios::binary) << "abc" << first << second << "the end";
  const EmbeddedFile files[] = {{path, std::pair{3 + first.size(), second.size()}},
                                {path, std::pair{std::uint64_t{3}, first.size()}}};
  const Reader reader = open_side_by_side(files);
  EXPECT_EQ(reader.files().size(), 1u);
  EXPECT_EQ(load(reader, "0/weight"), std::vector<std::int32_t>(100, 2));
  EXPECT_EQ(load(reader, "1/weight"), std::vector<std::int32_t>(100, 1));
}

TEST_F(SideBySideTest, what_is_not_there_is_refused) {
  const auto path = write("one.safetensors", 1);
  const auto said = [](std::vector<EmbeddedFile> files) {
    return std::string(error_of([&] { open_side_by_side(files); }).what());
  };
  EXPECT_THAT(said({}), HasSubstr("no file was named"));
  EXPECT_THAT(said({{path, {}}, {path, {}}}), HasSubstr("listed twice"));
  EXPECT_THAT(said({{directory_ / "none", {}}}), HasSubstr("none"));
  EXPECT_THAT(said({{path, std::pair<std::uint64_t, std::uint64_t>{100, 1 << 20}}}),
              HasSubstr("1048576 bytes at offset 100 are past its end"));
  EXPECT_THAT(said({{path, std::pair<std::uint64_t, std::uint64_t>{~std::uint64_t{0}, 2}}}), HasSubstr("past its end"));
  EXPECT_THAT(said({{path, std::pair<std::uint64_t, std::uint64_t>{0, 100}}}), HasSubstr("one.safetensors"));
}

}  // namespace
}  // namespace penstock
