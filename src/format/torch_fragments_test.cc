// FastPersist's fragments: names, shares, and the file that they are parts of.
#include "format/torch_fragments.h"

#include <gtest/gtest.h>

#include <deque>

#include "format/test_files.h"
#include "format/test_pickle.h"
#include "format/torch_file.h"

namespace penstock {
namespace {

using test::format_error;
using test::legacy_file;
using test::legacy_storage;
using test::little;
using test::p_dict;
using test::p_tensor;

// A save by one of the writers: the object, with keys of its own, and the storages in the order of those.
struct Save {
  std::string head;
  std::string stream;

  std::string fragment(std::uint32_t rank, std::uint32_t count) const {
    const ByteRange share = torch::fragment_share(stream.size(), rank, count);
    return head + stream.substr(share.begin, share.size());
  }
  std::string whole() const { return head + stream; }
};

const std::string kFirst = "first storage, 40 bytes of it, abcdefghi";
const std::string kSecond = "second: 16 bytes";

std::string item(const std::string& bytes, std::uint64_t width) {
  return little(std::uint64_t{bytes.size()} / width) + bytes;
}

Save save(const std::string& first_key, const std::string& second_key) {
  const std::string first = p_tensor(legacy_storage("FloatStorage", first_key, 10), 0, {10}, {1});
  const std::string second = p_tensor(legacy_storage("ByteStorage", second_key, 16), 0, {4, 4}, {4, 1});
  const bool in_order = first_key < second_key;
  const std::vector<std::string> keys =
      in_order ? std::vector{first_key, second_key} : std::vector{second_key, first_key};
  const std::string a = item(kFirst, 4);
  const std::string b = item(kSecond, 1);
  return {legacy_file(p_dict({{"a", first}, {"b", second}}), keys, ""), in_order ? a + b : b + a};
}

// Reads all of the merged file.
std::string merge(const std::vector<std::string>& fragments) {
  std::deque<MemorySource> sources;
  std::vector<const ByteSource*> pointers;
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    pointers.push_back(&sources.emplace_back(fragments[i], "f-" + std::to_string(i)));
  }
  const torch::MergedFragments merged(pointers, "f");
  std::string file(static_cast<std::size_t>(merged.size()), '\0');
  merged.read(0, std::as_writable_bytes(std::span(file)));
  torch::read_legacy(merged);
  return file;
}

std::string refusal(const std::vector<std::string>& fragments) {
  return format_error([&] { merge(fragments); });
}

TEST(TorchFragmentsTest, names_say_which_of_how_many) {
  const auto name = torch::parse_fragment_name("model-1.5.pt-3.12");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->stem, "model-1.5.pt");
  EXPECT_EQ(name->rank, 3u);
  EXPECT_EQ(name->count, 12u);
  EXPECT_EQ(torch::fragment_name("model.pt", 3, 12), "model.pt-3.12");
  for (const std::string_view none : {"model.pt", "-0.2", "a-2.2", "a-0.0", "a-00.2", "a-0.02", "a-0.", "a-.2", "a-x.2",
                                      "a-0.2x", "a-0.-2", "a-+0.2", "a-0.99999999999", "a0.2", ""}) {
    EXPECT_FALSE(torch::parse_fragment_name(none)) << none;
  }
}

TEST(TorchFragmentsTest, shares_are_equal_but_for_a_byte_and_leave_nothing_out) {
  for (const std::uint64_t nbytes : {0u, 1u, 7u, 64u, 65u, 1000u}) {
    for (std::uint32_t count = 1; count < 9; ++count) {
      std::uint64_t next = 0;
      for (std::uint32_t rank = 0; rank < count; ++rank) {
        const ByteRange share = torch::fragment_share(nbytes, rank, count);
        EXPECT_EQ(share.begin, next);
        EXPECT_EQ(share.size(), nbytes / count + (rank < nbytes % count ? 1 : 0));
        next = share.end;
      }
      EXPECT_EQ(next, nbytes);
    }
  }
}

TEST(TorchFragmentsTest, any_number_of_fragments_is_the_file_of_one_writer) {
  const Save one = save("11", "22");
  for (std::uint32_t count = 1; count <= one.stream.size() + 2; ++count) {
    std::vector<std::string> fragments;
    for (std::uint32_t rank = 0; rank < count; ++rank) fragments.push_back(one.fragment(rank, count));
    EXPECT_EQ(merge(fragments), one.whole()) << count;
  }
}

TEST(TorchFragmentsTest, writers_have_keys_of_their_own) {
  const Save mine = save("11", "22");
  EXPECT_EQ(merge({mine.fragment(0, 2), save("300", "4").fragment(1, 2)}), mine.whole());
  EXPECT_EQ(merge({mine.fragment(0, 3), save("5", "6").fragment(1, 3), save("70", "80").fragment(2, 3)}), mine.whole());
}

TEST(TorchFragmentsTest, what_no_writer_wrote_is_missed) {
  const std::string lost = ": their writers had the storages in different orders, and what none of them wrote is lost";
  // The second writer has the small storage first, so its half is the end of the large one.
  const std::string message = refusal({save("11", "22").fragment(0, 2), save("9", "8").fragment(1, 2)});
  EXPECT_EQ(message, "f: 16 of the 16 bytes of storage \"22\" are in none of the 2 fragments" + lost);
}

TEST(TorchFragmentsTest, other_orders_are_taken_where_nothing_is_missing) {
  // Of three equal storages, in another order at the second writer, who wrote the last.
  const auto equal = [](const std::vector<std::string>& keys, const std::vector<std::size_t>& order) {
    std::vector<std::pair<std::string, std::string>> entries;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      entries.emplace_back("t" + std::to_string(i), p_tensor(legacy_storage("ByteStorage", keys[i], 4), 0, {4}, {1}));
    }
    std::vector<std::string> listed;
    std::string stream;
    for (const std::size_t i : order) {
      listed.push_back(keys[i]);
      stream += item("dat" + std::to_string(i), 1);
    }
    return Save{legacy_file(p_dict(entries), listed, ""), stream};
  };
  const Save first = equal({"1", "2", "3", "4"}, {0, 1, 2, 3});
  const Save second = equal({"6", "5", "7", "8"}, {1, 0, 2, 3});
  EXPECT_EQ(merge({first.fragment(0, 2), second.fragment(1, 2)}), first.whole());
  EXPECT_NE(refusal({second.fragment(0, 4), first.fragment(1, 4), first.fragment(2, 4), first.fragment(3, 4)}),
            "no error");
}

TEST(TorchFragmentsTest, fragments_of_other_sizes_are_refused) {
  const Save one = save("11", "22");
  const std::uint64_t head = one.head.size();
  const auto has = [&](std::uint64_t nbytes, int rank, std::uint64_t expected) {
    return "f-" + std::to_string(rank) + ": it has " + std::to_string(head + nbytes) + " bytes, and fragment " +
           std::to_string(rank) + " of 2 of this save has " + std::to_string(head + expected);
  };
  EXPECT_EQ(refusal({one.fragment(0, 2), one.fragment(1, 2) + "x"}), has(37, 1, 36));
  EXPECT_EQ(refusal({one.fragment(0, 2).substr(0, head + 35), one.fragment(1, 2)}), has(35, 0, 36));
  EXPECT_EQ(refusal({one.fragment(0, 2), one.fragment(1, 3)}), has(24, 1, 36));
  EXPECT_EQ(refusal({one.fragment(0, 2), one.whole()}), "f-1: not a fragment, but a whole file; convert it alone");
  EXPECT_NE(refusal({one.fragment(0, 2), one.head.substr(0, head - 3)}).find("f-1: the list of keys: "),
            std::string::npos);
}

TEST(TorchFragmentsTest, fragments_of_other_saves_are_refused) {
  const Save one = save("11", "22");
  const auto beside = [&](const std::string& body, const std::vector<std::string>& keys, std::size_t stream) {
    const Save other{legacy_file(body, keys, ""), std::string(stream, 'x')};
    return refusal({one.fragment(0, 2), other.fragment(1, 2)});
  };
  const std::string floats = p_tensor(legacy_storage("FloatStorage", "11", 10), 0, {10}, {1});
  EXPECT_EQ(beside(p_dict({{"a", floats}}), {"11"}, 48),
            "f-1: it has 1 storages, and f-0 has 2: they are not of one save");
  const std::string shorts = p_tensor(legacy_storage("ShortStorage", "22", 8), 0, {4, 2}, {2, 1});
  EXPECT_EQ(beside(p_dict({{"a", floats}, {"b", shorts}}), {"11", "22"}, 72),
            "f-1: its storage 1 has 8 elements of I16, and f-0 has 16 of U8: they are not of one save");
  const std::string turned = p_tensor(legacy_storage("ByteStorage", "22", 16), 0, {4, 4}, {1, 4});
  EXPECT_EQ(beside(p_dict({{"a", floats}, {"b", turned}}), {"11", "22"}, 72),
            "f-1: its tensors are not those of f-0: they are not of one save");
  const std::string bytes = p_tensor(legacy_storage("ByteStorage", "22", 16), 0, {4, 4}, {4, 1});
  EXPECT_EQ(beside(p_dict({{"a", floats}, {"c", bytes}}), {"11", "22"}, 72),
            "f-1: its tensors are not those of f-0: they are not of one save");
}

TEST(TorchFragmentsTest, counts_are_those_of_the_pickle) {
  const Save one = save("11", "22");
  Save lying = one;
  lying.stream.replace(0, 8, "garbage!");
  lying.stream.replace(48, 8, "garbage!");
  for (const std::uint32_t count : {2u, 3u, 18u}) {
    std::vector<std::string> fragments;
    for (std::uint32_t rank = 0; rank < count; ++rank) fragments.push_back(lying.fragment(rank, count));
    EXPECT_EQ(merge(fragments), one.whole()) << count;
  }
}

TEST(TorchFragmentsTest, any_range_of_the_merged_file_can_be_read) {
  const Save one = save("11", "22");
  const std::string first = one.fragment(0, 2);
  const std::string second = one.fragment(1, 2);
  const MemorySource a(first, "f-0");
  const MemorySource b(second, "f-1");
  const torch::MergedFragments merged({&a, &b}, "f");
  const std::string whole = one.whole();
  for (std::size_t begin = one.head.size() - 3; begin < whole.size(); ++begin) {
    for (std::size_t length = 0; length <= whole.size() - begin; ++length) {
      std::string part(length, '?');
      merged.read(begin, std::as_writable_bytes(std::span(part)));
      ASSERT_EQ(part, whole.substr(begin, length)) << begin << " " << length;
    }
  }
  std::string beyond(1, '?');
  EXPECT_NE(format_error([&] { merged.read(whole.size(), std::as_writable_bytes(std::span(beyond))); }), "no error");
}

TEST(TorchFragmentsTest, files_of_other_formats_are_refused) {
  const Save one = save("11", "22");
  EXPECT_EQ(refusal({one.fragment(0, 2), "hello"}), "f-1: not a fragment of a legacy torch file");
  EXPECT_EQ(
      refusal({test::torch_zip("N", {}), one.fragment(1, 2)}),
      "f-0: not a fragment of a legacy torch file: it is a zip, which every writer writes whole; convert it alone");
}

TEST(TorchFragmentsTest, a_fragment_alone_says_that_it_is_one) {
  const std::string file = save("11", "22").fragment(1, 2);
  EXPECT_EQ(test::unsupported_error([&] { torch::read_legacy(MemorySource(file, "dir/model.pt-1.2")); }),
            "dir/model.pt-1.2: fragment 1 of 2 of \"model.pt\", which can't be read alone; convert joins them");
  EXPECT_NE(format_error([&] { torch::read_legacy(MemorySource(file, "model.pt")); }).find("truncated: storage"),
            std::string::npos);
}

TEST(TorchFragmentsTest, an_object_without_tensors_is_in_every_fragment) {
  const Save none{legacy_file("K\x07", {}, ""), ""};
  EXPECT_EQ(merge({none.fragment(0, 2), none.fragment(1, 2)}), none.whole());
}

}  // namespace
}  // namespace penstock
