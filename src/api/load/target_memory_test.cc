// Targets with strides: what lands is what copying a contiguous load would leave there, and nothing lies between.
#include "api/load/target_memory.h"

#include <gmock/gmock.h>

#include <map>
#include <numeric>
#include <random>

#include "penstock/writer.h"
#include "testing/errors.h"
#include "testing/files.h"

namespace penstock {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

constexpr std::byte kUntouched{0xAB};

class TargetMemoryTest : public ::testing::Test {
 protected:
  TargetMemoryTest() : values_(6 * 40 * 50), path_(directory_ / "one.safetensors") {
    std::iota(values_.begin(), values_.end(), 1.0f);
    Writer writer(path_);
    writer.add("cube", DType::kF32, {6, 40, 50}, values_.data());
    writer.commit();
  }

  // Loads a part into memory with these strides, and compares it element by element.
  void expect_lands(const Part& part, const Shape& shape, const std::vector<std::int64_t>& strides,
                    std::optional<DType> dtype, const LoadOptions& options) {
    const std::uint64_t width = dtype ? 8 : 4;
    std::uint64_t extent = width;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      extent += static_cast<std::uint64_t>((shape[i] - 1) * strides[i]);
    }
    std::vector<std::byte> memory(extent, kUntouched);
    const Target target{"cube", memory, dtype, part, strides};
    const Stats stats = Reader(path_).load_into({&target, 1}, options);
    std::vector<bool> filled(extent);
    for (std::int64_t i = 0; i < shape[0]; ++i) {
      for (std::int64_t j = 0; j < shape[1]; ++j) {
        for (std::int64_t k = 0; k < shape[2]; ++k) {
          const auto at = static_cast<std::size_t>(i * strides[0] + j * strides[1] + k * strides[2]);
          const float expected = value_at(first(part, 0) + i, first(part, 1) + j, first(part, 2) + k);
          if (dtype) {
            double found = 0;
            std::memcpy(&found, memory.data() + at, 8);
            ASSERT_EQ(found, expected) << i << "," << j << "," << k;
          } else {
            float found = 0;
            std::memcpy(&found, memory.data() + at, 4);
            ASSERT_EQ(found, expected) << i << "," << j << "," << k;
          }
          std::fill_n(filled.begin() + static_cast<std::ptrdiff_t>(at), width, true);
        }
      }
    }
    for (std::size_t i = 0; i < extent; ++i) {
      ASSERT_TRUE(filled[i] || memory[i] == kUntouched) << i;
    }
    EXPECT_EQ(stats.bytes, static_cast<std::uint64_t>(shape[0] * shape[1] * shape[2]) * 4);
  }

  static std::int64_t first(const Part& part, std::size_t i) {
    return i < part.size() && !part[i].empty() ? part[i][0].begin : 0;
  }
  float value_at(std::int64_t i, std::int64_t j, std::int64_t k) const {
    return values_[static_cast<std::size_t>((i * 40 + j) * 50 + k)];
  }

  testing::TempDir directory_;
  std::vector<float> values_;
  std::filesystem::path path_;
};

TEST_F(TargetMemoryTest, bytes_land_where_strides_say_and_nowhere_else) {
  for (const CachePolicy cache : {CachePolicy::kDirect, CachePolicy::kBuffered}) {
    for (const Landing landing : {Landing::kInPlace, Landing::kStaged}) {
      LoadOptions options;
      options.cache = cache;
      options.landing = landing;
      const Part box = {{{1, 4}}, {{5, 35}}, {{10, 40}}};
      expect_lands({}, {6, 40, 50}, {40 * 60 * 4, 60 * 4, 4}, {}, options);   // rows that are apart
      expect_lands({}, {6, 40, 50}, {4, 6 * 4, 6 * 40 * 4}, {}, options);     // the other way round
      expect_lands(box, {3, 30, 30}, {30 * 90 * 4, 90 * 4, 4}, {}, options);  // a box within a box
      expect_lands(box, {3, 30, 30}, {30 * 30 * 8, 30 * 8, 8}, {}, options);  // every other element
      expect_lands(box, {3, 30, 30}, {30 * 90 * 8, 90 * 8, 8}, DType::kF64, options);
      expect_lands(box, {3, 30, 30}, {30 * 30 * 4, 30 * 4, 4}, {}, options);  // contiguous, with strides named
    }
  }
}

TEST_F(TargetMemoryTest, parts_of_one_tensor_go_to_several_places) {
  std::vector<float> upper(2 * 40 * 50);
  std::vector<float> lower(4 * 40 * 50);
  const Target targets[] = {{"cube", std::as_writable_bytes(std::span(lower)), {}, {{{2, 6}}}, {}},
                            {"cube", std::as_writable_bytes(std::span(upper)), {}, {{{0, 2}}}, {}}};
  Reader(path_).load_into(targets);
  EXPECT_TRUE(std::equal(upper.begin(), upper.end(), values_.begin()));
  EXPECT_TRUE(std::equal(lower.begin(), lower.end(), values_.begin() + 2 * 40 * 50));
}

TEST_F(TargetMemoryTest, strides_that_make_no_sense_are_refused) {
  std::vector<std::byte> memory(1000000);
  const auto said = [&](std::size_t size, std::vector<std::int64_t> strides) {
    const Target target{"cube", std::span(memory).first(size), {}, {}, std::move(strides)};
    return std::string(error_of([&] { Reader(path_).load_into({&target, 1}); }).what());
  };
  EXPECT_THAT(said(48000, {200, 4}), HasSubstr("one.safetensors: tensor \"cube\" has 3 dimensions and 2 strides"));
  EXPECT_THAT(said(48000, {8000, 0, 4}), HasSubstr("has the stride 0 in dimension 1: strides are positive"));
  EXPECT_THAT(said(48000, {8000, 200, -4}), HasSubstr("has the stride -4 in dimension 2"));
  EXPECT_THAT(said(48000, {9000, 200, 4}), HasSubstr("tensor \"cube\" has 53000 bytes as F32, its target has 48000"));
}

}  // namespace
}  // namespace penstock
