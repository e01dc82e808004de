// What is fetched of a strided tensor: every element once, in its order, within the room there is, in few copies.
#include "transfer/strided_fetch.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/bytes.h"
#include "transfer/strided.h"

namespace penstock {
namespace {

using Numbers = std::vector<std::int64_t>;

struct Case {
  Numbers shape;
  Numbers strides;
};

// Memory around the first element, with a different number everywhere.
class Memory {
 public:
  Memory() : values_(400'000) { std::iota(values_.begin(), values_.end(), 0u); }
  const std::byte* first() const { return reinterpret_cast<const std::byte*>(values_.data() + values_.size() / 2); }

 private:
  std::vector<std::uint32_t> values_;
};

std::uint64_t count_of(const Numbers& shape) {
  std::uint64_t count = 1;
  for (const std::int64_t length : shape) count *= static_cast<std::uint64_t>(length);
  return count;
}

// Fetches boxes from `element` on until all is there.
std::vector<std::byte> fetch_all(const StridedFetch& fetch, const Memory& memory, std::uint64_t count,
                                 std::uint64_t most, std::uint64_t room) {
  std::vector<std::byte> all(count * 4);
  std::vector<std::byte> block(room);
  for (std::uint64_t element = 0; element < count;) {
    const StridedBox box = fetch.choose(element, std::min(most, count - element), room);
    EXPECT_GT(box.elements, 0u);
    EXPECT_LE(box.elements, most);
    EXPECT_LE(box.nbytes(), room);
    if (box.elements == 0) break;
    box.for_each([&](std::int64_t from, std::uint64_t to) {
      std::memcpy(block.data() + to, memory.first() + from, box.stretch);
    });
    const StridedReader reader(block.data() + box.first, box.shape, box.strides, 4);
    reader.read(0, std::span(all).subspan(element * 4, box.elements * 4));
    element += box.elements;
  }
  return all;
}

TEST(StridedFetchTest, boxes_of_any_size_have_every_element_in_order) {
  const Memory memory;
  for (const Case& each : std::vector<Case>{
           {{}, {}},
           {{1, 1}, {4, 4}},
           {{100}, {4}},
           {{100}, {-4}},
           {{100}, {0}},
           {{30, 40}, {4, 120}},
           {{30, 40}, {-4, 120}},
           {{30, 40}, {4000, 4}},
           {{7, 3, 11}, {4, 28 * 11, 28}},
           {{5, 1, 6, 2}, {0, 4, -8, 4}},
           {{20, 10}, {4, 4}},
           {{3, 4, 5, 6}, {4, 12, 48, 20'000}},
       }) {
    const std::uint64_t count = count_of(each.shape);
    std::vector<std::byte> expected(count * 4);
    StridedReader(memory.first(), each.shape, each.strides, 4).read(0, expected);
    const StridedFetch fetch(each.shape, each.strides, 4);
    for (const std::uint64_t most : {1u, 7u, 64u, 100'000u}) {
      for (const std::uint64_t room : {4u, 20u, 256u, 4096u, 200'000u}) {
        EXPECT_TRUE(fetch_all(fetch, memory, count, most, room) == expected)
            << ::testing::PrintToString(each.strides) << ", at most " << most << ", room " << room;
      }
    }
  }
}

TEST(StridedFetchTest, contiguous_elements_are_one_stretch) {
  const StridedBox box = StridedFetch(Numbers{1000, 1000}, Numbers{4000, 4}, 4).choose(5000, 20'000, kMiB);
  EXPECT_EQ(box.elements, 20'000u);
  EXPECT_EQ(box.stretches, 1u);
  EXPECT_EQ(box.nbytes(), 80'000u);
  EXPECT_EQ(box.lowest, 20'000);
}

TEST(StridedFetchTest, small_gaps_are_fetched_along_and_large_ones_are_not) {
  const StridedBox near = StridedFetch(Numbers{1000, 10}, Numbers{400, 4}, 4).choose(0, 10'000, kMiB);
  EXPECT_EQ(near.stretches, 1u);
  EXPECT_EQ(near.nbytes(), 999 * 400u + 40);
  const StridedBox far = StridedFetch(Numbers{10, 10'000}, Numbers{kMiB, 4}, 4).choose(0, 100'000, kMiB);
  EXPECT_EQ(far.stretches, 10u);
  EXPECT_EQ(far.nbytes(), 400'000u);
}

TEST(StridedFetchTest, an_expanded_dimension_is_fetched_once) {
  const StridedBox box = StridedFetch(Numbers{1000, 10}, Numbers{0, 4}, 4).choose(0, 10'000, kMiB);
  EXPECT_EQ(box.elements, 10'000u);
  EXPECT_EQ(box.nbytes(), 40u);
}

TEST(StridedFetchTest, without_room_there_is_no_box) {
  EXPECT_EQ(StridedFetch(Numbers{10}, Numbers{8}, 8).choose(0, 10, 7).elements, 0u);
}

}  // namespace
}  // namespace penstock
