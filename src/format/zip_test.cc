// The zip reader: what torch and other tools write is read; every way to say two things at once is refused.
#include "format/zip.h"

#include <gtest/gtest.h>

#include <random>

#include "format/test_files.h"
#include "format/test_zip.h"

namespace penstock {
namespace {

using test::Descriptor;
using test::format_error;
using test::little;
using test::unsupported_error;
using test::zip_file;
using test::ZipEnd;
using test::ZipEntry;

std::vector<zip::Record> parse(const std::string& file) {
  return zip::parse(MemorySource(file, "f"));
}

std::string refusal_of(const std::string& file) {
  return format_error([&] { parse(file); });
}

std::string refusal(const std::vector<ZipEntry>& entries, const ZipEnd& end = {}) {
  return refusal_of(zip_file(entries, end));
}

std::string unsupported(const std::vector<ZipEntry>& entries) {
  return unsupported_error([&] { parse(zip_file(entries)); });
}

std::string zip64(std::initializer_list<std::uint64_t> values) {
  std::string body;
  for (const std::uint64_t value : values) body += little(value);
  return little(zip::kZip64Id) + little(static_cast<std::uint16_t>(body.size())) + body;
}

TEST(ZipTest, records_are_found_with_their_places_and_checksums) {
  const std::string file = zip_file({{"a/x", "hello"}, {"a/y", ""}, {"a/z", "!"}});
  const auto records = parse(file);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].name, "a/x");
  EXPECT_EQ(file.substr(records[0].offset, records[0].nbytes), "hello");
  EXPECT_EQ(records[0].crc32, 0x3610a686u);
  EXPECT_EQ(records[1].nbytes, 0u);
  EXPECT_EQ(file.substr(records[2].offset, records[2].nbytes), "!");
}

TEST(ZipTest, an_archive_of_nothing_is_one) {
  EXPECT_TRUE(parse(zip_file({})).empty());
}

TEST(ZipTest, descriptors_of_16_and_of_24_bytes_are_read) {
  ZipEntry narrow{"n", "data"};
  narrow.descriptor = Descriptor::kNarrow;
  ZipEntry wide{"w", "more data"};
  wide.descriptor = Descriptor::kWide;
  const auto records = parse(zip_file({narrow, wide, {"end", "x"}}));
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[1].nbytes, 9u);
}

TEST(ZipTest, padding_in_an_extra_field_moves_the_data) {
  ZipEntry entry{"a", "data"};
  entry.local_extra = "FB" + little(std::uint16_t{7}) + "ZZZZZZZ";
  const auto records = parse(zip_file({entry}));
  EXPECT_EQ(records[0].offset, 30u + 1 + 11);
}

TEST(ZipTest, a_zip64_end_record_and_fields_are_read) {
  ZipEntry entry{"a", "data"};
  entry.central_nbytes = zip::kNarrow32;
  entry.central_offset = zip::kNarrow32;
  entry.central_extra = zip64({4, 4, 0});
  EXPECT_EQ(parse(zip_file({entry}, {.wide = true}))[0].nbytes, 4u);
  entry.local_nbytes = zip::kNarrow32;
  entry.local_extra = zip64({4, 4});
  EXPECT_EQ(parse(zip_file({entry}, {.wide = true}))[0].nbytes, 4u);
}

TEST(ZipTest, two_records_of_one_name_are_refused) {
  EXPECT_EQ(refusal({{"a", "1"}, {"a", "2"}}), "f: record \"a\" appears twice");
}

TEST(ZipTest, names_that_differ_in_case_only_are_refused) {
  EXPECT_EQ(refusal({{"x/data/A", "1"}, {"x/Data/a", "2"}}),
            "f: records \"x/data/A\" and \"x/Data/a\" differ in nothing but case");
}

TEST(ZipTest, names_with_a_nul_or_that_are_not_utf8_are_refused) {
  EXPECT_EQ(refusal({{std::string("a\0b", 3), "1"}}), "f: record \"a\\x00b\" has a NUL in its name");
  EXPECT_EQ(refusal({{"\xff", "1"}}), "f: entry 0 has a name that is not valid UTF-8");
}

TEST(ZipTest, a_directory_has_no_bytes) {
  ZipEntry marked{"a", "1"};
  marked.central_attributes = 0x10;
  EXPECT_EQ(refusal({marked}), "f: record \"a\" is marked as a directory, and has 1 bytes");
  EXPECT_EQ(refusal({{"a/", "1"}}), "f: record \"a/\" is marked as a directory, and has 1 bytes");
  ZipEntry folder{"a/", ""};
  folder.central_attributes = 0x10;
  EXPECT_EQ(parse(zip_file({folder, {"a/b", "1"}})).size(), 2u);
}

TEST(ZipTest, two_entries_for_the_same_bytes_are_refused) {
  ZipEntry copy{"b", "1"};
  copy.central_offset = 0;
  EXPECT_EQ(refusal({{"a", "1"}, copy}), "f: record \"a\": its local header at 0 overlaps what follows at 0");
}

TEST(ZipTest, a_record_within_another_is_refused) {
  const std::string inner = zip_file({{"b", "1"}});
  ZipEntry outer{"a", inner.substr(0, 32)};
  ZipEntry within{"b", "1"};
  within.central_offset = 31;  // in the data of "a"
  EXPECT_EQ(refusal({outer, within}), "f: record \"a\": its 32 bytes at 31 overlap what follows at 31");
}

TEST(ZipTest, a_record_that_reaches_into_the_directory_is_refused) {
  ZipEntry entry{"a", "data"};
  entry.local_nbytes = 5;
  entry.central_nbytes = 5;
  EXPECT_EQ(refusal({entry}), "f: record \"a\": its 5 bytes at 31 overlap what follows at 35");
}

TEST(ZipTest, a_place_beyond_the_file_is_refused) {
  ZipEntry entry{"b", "1"};
  entry.central_offset = 1'000'000;
  EXPECT_EQ(refusal({{"a", "1"}, entry}), "f: record \"a\": 999968 bytes that belong to nothing follow it");
  ZipEntry far{"b", "1"};
  far.local_nbytes = zip::kNarrow32;
  far.local_extra = zip64({~std::uint64_t{0}, ~std::uint64_t{0}});
  far.central_nbytes = zip::kNarrow32;
  far.central_extra = zip64({~std::uint64_t{0}, ~std::uint64_t{0}});
  EXPECT_EQ(refusal({far}), "f: record \"b\": its 18446744073709551615 bytes at 51 overlap what follows at 52");
}

TEST(ZipTest, bytes_that_no_record_owns_are_refused) {
  ZipEntry gap{"a", "1"};
  gap.gap = "hidden";
  EXPECT_EQ(refusal({gap, {"b", "2"}}), "f: record \"a\": 6 bytes that belong to nothing follow it");
  EXPECT_EQ(refusal({{"a", "1"}}, {.before_directory = "hidden"}),
            "f: record \"a\": 6 bytes that belong to nothing follow it");
  ZipEntry described{"a", "1"};
  described.descriptor = Descriptor::kNarrow;
  described.gap = "gap";
  EXPECT_EQ(refusal({described}), "f: record \"a\": 19 bytes follow it, expected a descriptor of 16 or 24");
  ZipEntry second{"b", "2"};
  EXPECT_EQ(refusal_of(zip_file({{"a", "1"}, second})), "no error");
  // A record that the directory does not list, at the front.
  std::string file = zip_file({{"a", "1"}, second});
  const std::size_t directory = file.find(little(zip::kCentralSignature));
  file.erase(directory, zip::kCentralBytes + 1);
  const std::string end = little(zip::kEndSignature) + little(std::uint32_t{0}) + little(std::uint32_t{0x00010001}) +
                          little(std::uint32_t{47}) + little(static_cast<std::uint32_t>(directory)) +
                          little(std::uint16_t{0});
  file.replace(file.size() - zip::kEndBytes, zip::kEndBytes, end);
  EXPECT_EQ(refusal_of(file), "f: 32 bytes lie before the first record");
}

TEST(ZipTest, a_local_header_that_tells_another_story_is_refused) {
  const std::string disagree = "f: record \"a\": its local header and the central directory disagree";
  ZipEntry name{"a", "1"};
  name.local_name = "b";
  EXPECT_EQ(refusal({name}), "f: record \"a\": its local header calls it \"b\"");
  ZipEntry flags{"a", "1"};
  flags.local_flags = 0x0800;
  EXPECT_EQ(refusal({flags}), disagree);
  ZipEntry checksum{"a", "1"};
  checksum.local_crc32 = 7;
  EXPECT_EQ(refusal({checksum}), disagree);
  ZipEntry size{"a", "1"};
  size.local_nbytes = 2;
  EXPECT_EQ(refusal({size}), disagree);
  ZipEntry described{"a", "1"};
  described.descriptor = Descriptor::kNarrow;
  described.local_nbytes = 2;
  EXPECT_EQ(refusal({described}), disagree);
  described.local_nbytes = 1;
  EXPECT_EQ(refusal({described}), "no error");
}

TEST(ZipTest, a_descriptor_that_tells_another_story_is_refused) {
  ZipEntry entry{"a", "1"};
  entry.descriptor = Descriptor::kNarrow;
  entry.descriptor_nbytes = 2;
  EXPECT_EQ(refusal({entry}), "f: record \"a\": its descriptor and the central directory disagree");
  entry.descriptor = Descriptor::kWide;
  EXPECT_EQ(refusal({entry}), "f: record \"a\": its descriptor and the central directory disagree");
  entry.descriptor_nbytes.reset();
  entry.central_crc32 = 1;
  EXPECT_EQ(refusal({entry}), "f: record \"a\": its descriptor and the central directory disagree");
}

// A flipped bit of one of its headers does not make a record compressed.
TEST(ZipTest, compression_that_only_one_header_speaks_of_is_damage) {
  const std::string whole = zip_file({{"a", "1"}});
  const std::size_t central = whole.find(little(zip::kCentralSignature));
  // Where the flags and the method stand.
  for (const auto& [at, value] :
       std::vector<std::pair<std::size_t, char>>{{6, 1}, {8, 8}, {central + 8, 1}, {central + 10, 8}}) {
    std::string file = whole;
    file[at] = value;
    EXPECT_EQ(refusal_of(file), "f: record \"a\": its local header and the central directory disagree") << at;
  }
}

// A record of a thousand times "a".
ZipEntry deflated_entry(std::uint32_t nbytes = 1000) {
  ZipEntry entry{"a", std::string("\x4b\x4c\x1c\x05\xa3\x60\x14\x0c\x77\x00\x00", 11)};
  entry.method = zip::kDeflated;
  entry.inflated_nbytes = nbytes;
  return entry;
}

std::string content(const std::string& file, const zip::Record& record) {
  std::string text;
  zip::read_record(MemorySource(file, "f"), record, [&](std::span<const std::byte> bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  return text;
}

TEST(ZipTest, deflated_records_are_read_like_stored_ones) {
  ZipEntry described = deflated_entry();
  described.name = "b";
  described.descriptor = Descriptor::kNarrow;
  const std::string file = zip_file({deflated_entry(), {"s", "stored"}, described});
  const auto records = parse(file);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_TRUE(records[0].deflated);
  EXPECT_EQ(records[0].stored_nbytes, 11u);
  EXPECT_EQ(content(file, records[0]), std::string(1000, 'a'));
  EXPECT_FALSE(records[1].deflated);
  EXPECT_EQ(content(file, records[1]), "stored");
  EXPECT_EQ(content(file, records[2]), std::string(1000, 'a'));
}

TEST(ZipTest, deflated_records_give_exactly_their_size) {
  for (const auto& [nbytes, why] : std::vector<std::pair<std::uint32_t, std::string>>{
           {999, "it inflates to more than its size"}, {1001, "it inflates to less than its size"}}) {
    const std::string file = zip_file({deflated_entry(nbytes)});
    EXPECT_EQ(format_error([&] { content(file, parse(file)[0]); }), "f: record \"a\": " + why);
  }
  EXPECT_EQ(refusal({deflated_entry(1'000'000)}),
            "f: record \"a\" can't have 1000000 bytes: deflate does not make them of 11");
}

TEST(ZipTest, other_compressions_and_encrypted_records_are_refused) {
  ZipEntry packed{"a", "1"};
  packed.method = 12;
  EXPECT_EQ(unsupported({packed}), "f: record \"a\" is compressed (method 12), which this version can't read");
  ZipEntry encrypted{"a", "1"};
  encrypted.flags = zip::kEncryptedFlag;
  EXPECT_EQ(unsupported({encrypted}), "f: record \"a\" is encrypted");
  ZipEntry lengths{"a", "1"};
  lengths.descriptor = Descriptor::kNarrow;
  lengths.central_compressed = 2;
  EXPECT_EQ(refusal({lengths}), "f: record \"a\" is stored, but takes 2 bytes for 1");
}

TEST(ZipTest, extra_fields_that_are_cut_off_are_refused) {
  ZipEntry central{"a", "1"};
  central.central_extra = "FB" + little(std::uint16_t{9}) + "ZZZ";
  EXPECT_EQ(refusal({central}), "f: record \"a\": its extra field is cut off");
  ZipEntry local{"a", "1"};
  local.local_extra = "FB" + little(std::uint16_t{9}) + "ZZZ";
  EXPECT_EQ(refusal({local}), "f: record \"a\": its extra field is cut off");
  local.descriptor = Descriptor::kNarrow;
  EXPECT_EQ(refusal({local}), "f: record \"a\": its extra field is cut off");
  ZipEntry half{"a", "1"};
  half.central_extra = "FB";
  EXPECT_EQ(refusal({half}), "f: record \"a\": its extra field is cut off");
  ZipEntry short_wide{"a", "1"};
  short_wide.central_nbytes = zip::kNarrow32;
  short_wide.central_extra = zip64({1});
  EXPECT_EQ(refusal({short_wide}), "f: record \"a\": its zip64 field is too short");
  ZipEntry twice{"a", "1"};
  twice.central_extra = zip64({}) + zip64({});
  EXPECT_EQ(refusal({twice}), "f: record \"a\" has two zip64 fields");
}

TEST(ZipTest, whatever_follows_the_end_record_is_refused) {
  const std::string message =
      ": expected the end record of a zip archive: the file is truncated, or bytes follow the archive";
  const std::string whole = zip_file({{"a", "1"}});
  EXPECT_EQ(refusal({{"a", "1"}}, {.trailing = "x"}), "f: byte " + std::to_string(whole.size() - 21) + message);
  EXPECT_EQ(refusal({{"a", "1"}}, {.comment = "a comment"}), "f: byte " + std::to_string(whole.size() - 13) + message);
  // A second end record, that of an archive of nothing.
  EXPECT_EQ(refusal_of(whole + zip_file({})),
            "f: the central directory is said to take 0 bytes at 0, but the end record is at " +
                std::to_string(whole.size()));
  EXPECT_EQ(refusal_of(whole + whole).substr(0, 50), "f: the central directory is said to take 47 bytes ");
}

TEST(ZipTest, a_comment_in_an_end_record_that_is_the_last_bytes_is_refused) {
  std::string file = zip_file({{"a", "1"}});
  file[file.size() - 2] = 1;
  EXPECT_EQ(refusal_of(file), "f: byte " + std::to_string(file.size() - 22) + ": the archive has a comment");
}

TEST(ZipTest, two_end_records_that_disagree_are_refused) {
  EXPECT_EQ(refusal({{"a", "1"}}, {.wide = true, .wide_count = 2}), "f: the two end records disagree");
  EXPECT_EQ(refusal({{"a", "1"}}, {.wide = true, .offset = 5}), "f: the two end records disagree");
  EXPECT_EQ(refusal({{"a", "1"}}, {.wide = true, .count = 0xFFFF}), "no error");
  EXPECT_EQ(refusal({{"a", "1"}}, {.wide = true, .wide_at = 3}),
            "f: the zip64 end record is said to be at 3, expected 79");
}

TEST(ZipTest, a_directory_that_is_not_where_it_is_said_to_be_is_refused) {
  EXPECT_EQ(refusal({{"a", "1"}}, {.offset = 31}),
            "f: the central directory is said to take 47 bytes at 31, but the end record is at 79");
  EXPECT_EQ(refusal({{"a", "1"}}, {.after_directory = "?"}),
            "f: the central directory is said to take 47 bytes at 32, but the end record is at 80");
  EXPECT_EQ(refusal({{"a", "1"}}, {.count = 2}), "f: 2 records can't be listed in 47 bytes");
  EXPECT_EQ(refusal({{"a", "1"}}, {.count = 0}), "f: bytes follow the 0 entries of the central directory");
  ZipEntry comment{"a", "1"};
  comment.central_comment = "fine";
  EXPECT_EQ(refusal({comment}), "no error");
}

TEST(ZipTest, archives_of_several_volumes_are_refused) {
  EXPECT_EQ(refusal({{"a", "1"}}, {.disk = 1}), "f: the archive has several volumes");
  ZipEntry entry{"a", "1"};
  entry.central_disk = 1;
  EXPECT_EQ(refusal({entry}), "f: the archive has several volumes");
}

TEST(ZipTest, an_archive_cut_anywhere_is_refused) {
  ZipEntry described{"b", "2"};
  described.descriptor = Descriptor::kWide;
  for (const bool wide : {false, true}) {
    const std::string whole = zip_file({{"a", "1"}, described}, {.wide = wide});
    EXPECT_EQ(parse(whole).size(), 2u);
    for (std::size_t length = 0; length < whole.size(); ++length) {
      EXPECT_NE(refusal_of(whole.substr(0, length)), "no error") << length;
    }
  }
}

// Bytes that are not data are all looked at: whichever bit flips, the archive is refused or lists the same records.
TEST(ZipTest, flipped_bits_never_move_a_record) {
  ZipEntry described{"b", "22"};
  described.descriptor = Descriptor::kNarrow;
  const std::string whole = zip_file({{"a", "1"}, described}, {.wide = true});
  const auto expected = parse(whole);
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string file = whole;
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ (1 << (bit % 8)));
    try {
      const auto records = parse(file);
      ASSERT_EQ(records.size(), expected.size());
      for (std::size_t i = 0; i < records.size(); ++i) {
        EXPECT_EQ(records[i].name, expected[i].name);
        EXPECT_EQ(records[i].offset, expected[i].offset);
        EXPECT_EQ(records[i].nbytes, expected[i].nbytes);
        EXPECT_EQ(records[i].crc32, expected[i].crc32);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFormat);
    }
  }
}

}  // namespace
}  // namespace penstock
