#include "format/detect.h"

#include <gtest/gtest.h>

#include "format/test_files.h"

namespace penstock {
namespace {

using namespace std::string_literals;
using test::argument_error;
using test::format_error;
using test::golden_file;

std::string refusal(const std::string& file) {
  return format_error([&] { parse_layout(MemorySource(file, "f")); });
}

std::string stranger(const std::string& what) {
  return "f: this is " + what + ", which this version can't read (it reads safetensors)";
}

TEST(Detect, safetensors_is_known_by_its_bytes) {
  const Layout layout = parse_layout(MemorySource(golden_file("safetensors/shapes.safetensors"), "no-suffix"));
  EXPECT_EQ(layout.format, "safetensors");
  EXPECT_EQ(layout.tensors.size(), 6U);
}

TEST(Detect, a_damaged_safetensors_file_has_its_own_message) {
  EXPECT_EQ(refusal(golden_file("safetensors/shapes.safetensors") + "x"),
            "f: bytes after the last tensor: the tensors take 31, but the file has 32 after its header");
  EXPECT_EQ(refusal("\xff\xff\xff\xff\xff\xff\xff\xff{}"s),
            "f: byte 0: the header length is 18446744073709551615, more than the limit of 100000000");
}

TEST(Detect, an_empty_file_is_called_empty) {
  EXPECT_EQ(refusal(""), "f: the file is empty");
}

TEST(Detect, strangers_are_called_by_their_name) {
  EXPECT_EQ(refusal("PK\x03\x04\x00\x00\x08\x08\x00\x00"s), stranger("a zip archive, perhaps a torch checkpoint"));
  EXPECT_EQ(refusal("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e"s),
            stranger("a torch checkpoint of the legacy format"));
  EXPECT_EQ(refusal("\x80\x02}q\x00."s), stranger("a Python pickle"));
  EXPECT_EQ(refusal("\x80\x04\x95\x0b\x00\x00"s), stranger("a Python pickle"));
  EXPECT_EQ(refusal("GGUF\x03\x00\x00\x00"s), stranger("a GGUF file"));
  EXPECT_EQ(refusal("\x89HDF\r\n\x1a\n\x00"s), stranger("an HDF5 file"));
  EXPECT_EQ(refusal("<!DOCTYPE html><html>"), stranger("an HTML page"));
  EXPECT_EQ(refusal("<html><head>"), stranger("an HTML page"));
  EXPECT_EQ(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
            stranger("a Git LFS pointer, not the file it stands for"));
  EXPECT_EQ(refusal("{\"weight_map\":1}"), stranger("JSON text"));
}

TEST(Detect, flashpack_is_known_by_its_end) {
  EXPECT_EQ(refusal("payload{}\x02\x00\x00\x00\x00\x00\x00\x00"
                    "FLASHPK\x00"s),
            stranger("a FlashPack file"));
  EXPECT_EQ(refusal("FLASHPK\x00"s), stranger("a FlashPack file"));
}

TEST(Detect, anything_else_is_shown_by_its_first_bytes) {
  EXPECT_EQ(refusal("garbage, and more of it"),
            "f: not a format that this version reads (safetensors): the 23 bytes start with "
            "67 61 72 62 61 67 65 2c 20 61 6e 64 20 6d 6f 72");
  EXPECT_EQ(refusal("\x00"s), "f: not a format that this version reads (safetensors): the 1 bytes start with 00");
}

TEST(FormatForSave, follows_the_suffix) {
  EXPECT_EQ(format_for_save("", "dir/model.safetensors"), "safetensors");
}

TEST(FormatForSave, a_named_format_wins_over_the_suffix) {
  EXPECT_EQ(format_for_save("safetensors", "model.bin"), "safetensors");
}

TEST(FormatForSave, an_unknown_name_is_refused) {
  EXPECT_EQ(argument_error([] { format_for_save("flashpack", "m.safetensors"); }),
            "the format \"flashpack\" is not one that this version writes (safetensors)");
}

TEST(FormatForSave, an_unknown_suffix_is_refused) {
  EXPECT_EQ(argument_error([] { format_for_save("", "m.bin"); }),
            "m.bin: no format was named, and the suffix stands for none that this version writes (safetensors)");
}

}  // namespace
}  // namespace penstock
