#include "base/cast.h"

#include <gtest/gtest.h>
#include <isa-l/crc.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/minifloat.h"

namespace penstock {
namespace {

constexpr DType kCastable[] = {DType::kF64,    DType::kF32,    DType::kF16,        DType::kBF16,      DType::kF8E5M2,
                               DType::kF8E4M3, DType::kF8E8M0, DType::kF8E4M3FNUZ, DType::kF8E5M2FNUZ};

using Bytes = std::vector<std::byte>;

template <typename Code>
Bytes bytes_of(const std::vector<Code>& codes) {
  const auto bytes = std::as_bytes(std::span(codes));
  return {bytes.begin(), bytes.end()};
}

template <typename Code>
std::vector<Code> every_code() {
  std::vector<Code> codes(std::size_t{1} << (8 * sizeof(Code)));
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<Code>(i);
  return codes;
}

// As tests/data/make_casts.py makes them.
std::vector<std::uint32_t> float_codes() {
  constexpr std::uint32_t kCount = 1U << 20;
  std::vector<std::uint32_t> codes(2 * kCount);
  for (std::uint32_t i = 0; i < kCount; ++i) {
    codes[i] = i << 12;
    codes[kCount + i] = (i << 12) | ((i * 0x9E3779B1U) >> 20);
  }
  return codes;
}

std::vector<std::uint64_t> double_codes() {
  const auto floats = float_codes();
  std::vector<std::uint64_t> codes(floats.size());
  for (std::size_t i = 0; i < floats.size(); ++i) {
    codes[i] = std::bit_cast<std::uint64_t>(static_cast<double>(std::bit_cast<float>(floats[i]))) ^ (i & 3);
  }
  return codes;
}

const Bytes& input_of(DType dtype) {
  static const Bytes bytes = bytes_of(every_code<std::uint8_t>());
  static const Bytes halves = bytes_of(every_code<std::uint16_t>());
  static const Bytes floats = bytes_of(float_codes());
  static const Bytes doubles = bytes_of(double_codes());
  switch (dtype_bits(dtype)) {
    case 8:
      return bytes;
    case 16:
      return halves;
    case 32:
      return floats;
    default:
      return doubles;
  }
}

Bytes cast(DType from, const Bytes& source, DType to) {
  const std::size_t count = source.size() * 8 / dtype_bits(from);
  Bytes target(count * dtype_bits(to) / 8);
  cast_elements(from, source.data(), to, target.data(), count);
  return target;
}

template <typename From, typename To>
To cast_one(DType from, From value, DType to) {
  To result;
  cast_elements(from, reinterpret_cast<const std::byte*>(&value), to, reinterpret_cast<std::byte*>(&result), 1);
  return result;
}

std::uint8_t float_as(DType to, float value) {
  return cast_one<float, std::uint8_t>(DType::kF32, value, to);
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Cast, every_pair_agrees_with_torch_bit_for_bit) {
  std::ifstream golden(std::string(PENSTOCK_TEST_DATA) + "/casts.txt");
  std::string from_name;
  std::string to_name;
  std::string expected;
  int pairs = 0;
  while (golden >> from_name >> to_name >> expected) {
    const DType from = parse_dtype(from_name).value();
    const DType to = parse_dtype(to_name).value();
    const Bytes converted = cast(from, input_of(from), to);
    const auto* data = reinterpret_cast<const unsigned char*>(converted.data());
    EXPECT_EQ(crc32_gzip_refl(0, data, converted.size()), std::stoul(expected, nullptr, 16))
        << from_name << " " << to_name;
    ++pairs;
  }
  EXPECT_EQ(pairs, 81);
}

TEST(Cast, loops_of_every_length_agree_with_one_element_at_a_time) {
  // The vector body of a loop and its scalar tail must do the same.
  const auto codes = float_codes();
  for (const DType to : kCastable) {
    const std::size_t width = dtype_bits(to) / 8;
    for (std::size_t count = 0; count < 70; ++count) {
      const std::vector<std::uint32_t> some(codes.begin() + 1000003,
                                            codes.begin() + 1000003 + static_cast<long>(count));
      const Bytes together = cast(DType::kF32, bytes_of(some), to);
      for (std::size_t i = 0; i < count; ++i) {
        const Bytes alone = cast(DType::kF32, bytes_of(std::vector{some[i]}), to);
        ASSERT_EQ(std::memcmp(alone.data(), together.data() + i * width, width), 0) << dtype_name(to) << " " << count;
      }
    }
  }
}

TEST(Cast, the_portable_form_agrees_for_every_pair) {
  for (const DType from : kCastable) {
    const Bytes& source = input_of(from);
    const std::size_t count = source.size() * 8 / dtype_bits(from);
    for (const DType to : kCastable) {
      Bytes portable(count * dtype_bits(to) / 8);
      cast_elements_portably(from, source.data(), to, portable.data(), count);
      EXPECT_TRUE(portable == cast(from, source, to)) << dtype_name(from) << " " << dtype_name(to);
    }
  }
}

TEST(Cast, more_than_one_block_through_floats_is_whole) {
  std::vector<std::uint16_t> codes(5000);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(0x3C00 + i % 1024);
  const Bytes converted = cast(DType::kF16, bytes_of(codes), DType::kF64);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    double value = 0;
    std::memcpy(&value, converted.data() + i * 8, 8);
    ASSERT_EQ(value, 1 + static_cast<double>(i % 1024) / 1024);
  }
}

TEST(Cast, misaligned_source_and_target_are_fine) {
  for (const DType from : kCastable) {
    for (const DType to : kCastable) {
      const std::size_t from_width = dtype_bits(from) / 8;
      const std::size_t to_width = dtype_bits(to) / 8;
      const Bytes& input = input_of(from);
      const std::size_t count = 100;
      Bytes source(count * from_width + 1);
      std::memcpy(source.data() + 1, input.data() + input.size() / 3, count * from_width);
      Bytes target(count * to_width + 1);
      cast_elements(from, source.data() + 1, to, target.data() + 1, count);
      const Bytes expected = cast(from, Bytes(source.begin() + 1, source.end()), to);
      EXPECT_EQ(Bytes(target.begin() + 1, target.end()), expected) << dtype_name(from) << " " << dtype_name(to);
    }
  }
}

TEST(Cast, nothing_writes_beyond_its_elements) {
  const Bytes& source = input_of(DType::kF32);
  for (const DType to : kCastable) {
    const std::size_t size = 33 * dtype_bits(to) / 8;
    Bytes target(size + 64, std::byte{0xA5});
    cast_elements(DType::kF32, source.data(), to, target.data(), 33);
    EXPECT_EQ(Bytes(target.begin() + static_cast<long>(size), target.end()), Bytes(64, std::byte{0xA5}))
        << dtype_name(to);
  }
}

TEST(Cast, narrow_types_survive_a_trip_through_wider_ones) {
  for (const DType narrow : {DType::kF16, DType::kBF16, DType::kF8E5M2, DType::kF8E4M3, DType::kF8E4M3FNUZ}) {
    const Bytes& codes = input_of(narrow);
    const Bytes back = cast(DType::kF64, cast(narrow, codes, DType::kF64), narrow);
    const std::size_t width = dtype_bits(narrow) / 8;
    for (std::size_t i = 0; i < codes.size(); i += width) {
      if (count_not_finite(narrow, codes.data() + i, 1) != 0) continue;
      ASSERT_EQ(std::memcmp(codes.data() + i, back.data() + i, width), 0) << dtype_name(narrow) << " " << i / width;
    }
  }
}

TEST(Cast, same_type_is_a_copy_even_of_nan) {
  const std::uint32_t signalling = 0x7F800001;
  EXPECT_EQ((cast_one<std::uint32_t, std::uint32_t>(DType::kF32, signalling, DType::kF32)), signalling);
}

TEST(Cast, no_elements_need_no_memory) {
  for (const DType to : kCastable) {
    cast_elements(DType::kF32, nullptr, to, nullptr, 0);
    EXPECT_EQ(count_not_finite(to, nullptr, 0), 0U);
  }
}

TEST(Cast, float_to_half_rounds_to_even_and_overflows_to_infinity) {
  const auto half = [](float value) { return cast_one<float, std::uint16_t>(DType::kF32, value, DType::kF16); };
  EXPECT_EQ(half(1.0F), 0x3C00);
  EXPECT_EQ(half(-2.0F), 0xC000);
  EXPECT_EQ(half(1.0F + 0x1p-11F), 0x3C00);      // a tie, down to even
  EXPECT_EQ(half(1.0F + 3 * 0x1p-11F), 0x3C02);  // a tie, up to even
  EXPECT_EQ(half(65504.0F), 0x7BFF);
  EXPECT_EQ(half(65519.996F), 0x7BFF);
  EXPECT_EQ(half(65520.0F), 0x7C00);
  EXPECT_EQ(half(-kInf), 0xFC00);
  EXPECT_EQ(half(0x1p-24F), 0x0001);  // the smallest subnormal
  EXPECT_EQ(half(0x1p-25F), 0x0000);  // half of it: a tie, to even
  EXPECT_EQ(half(-0.0F), 0x8000);
}

TEST(Cast, float_to_bfloat16_rounds_to_even) {
  const auto bfloat = [](std::uint32_t bits) {
    return cast_one<std::uint32_t, std::uint16_t>(DType::kF32, bits, DType::kBF16);
  };
  EXPECT_EQ(bfloat(0x3F800000), 0x3F80);
  EXPECT_EQ(bfloat(0x3F808000), 0x3F80);
  EXPECT_EQ(bfloat(0x3F818000), 0x3F82);
  EXPECT_EQ(bfloat(0x7F7FFFFF), 0x7F80);
  EXPECT_EQ(bfloat(0x80000001), 0x8000);
}

TEST(Cast, e5m2_overflows_to_infinity) {
  EXPECT_EQ(float_as(DType::kF8E5M2, 57344.0F), 0x7B);
  EXPECT_EQ(float_as(DType::kF8E5M2, 61439.0F), 0x7B);
  EXPECT_EQ(float_as(DType::kF8E5M2, 61440.0F), 0x7C);
  EXPECT_EQ(float_as(DType::kF8E5M2, -kInf), 0xFC);
  EXPECT_EQ(float_as(DType::kF8E5M2, kNan), 0x7F);
}

TEST(Cast, e4m3_stops_at_its_largest_value) {
  EXPECT_EQ(float_as(DType::kF8E4M3, 448.0F), 0x7E);
  EXPECT_EQ(float_as(DType::kF8E4M3, 1e30F), 0x7E);
  EXPECT_EQ(float_as(DType::kF8E4M3, -kInf), 0xFE);
  EXPECT_EQ(float_as(DType::kF8E4M3, kNan), 0x7F);
  EXPECT_EQ(float_as(DType::kF8E4M3, 0x1p-9F), 0x01);
}

TEST(Cast, fnuz_types_have_one_zero_and_one_nan) {
  for (const DType dtype : {DType::kF8E4M3FNUZ, DType::kF8E5M2FNUZ}) {
    EXPECT_EQ(float_as(dtype, -0.0F), 0x00);
    EXPECT_EQ(float_as(dtype, -1e-30F), 0x00);
    EXPECT_EQ(float_as(dtype, kInf), 0x80);
    EXPECT_EQ(float_as(dtype, 1e30F), 0x80);
    EXPECT_EQ(float_as(dtype, kNan), 0x80);
  }
  EXPECT_EQ(float_as(DType::kF8E4M3FNUZ, 240.0F), 0x7F);
  EXPECT_EQ(float_as(DType::kF8E5M2FNUZ, -57344.0F), 0xFF);
}

TEST(Cast, e8m0_is_a_power_of_two_without_sign) {
  EXPECT_EQ(float_as(DType::kF8E8M0, 1.0F), 127);
  EXPECT_EQ(float_as(DType::kF8E8M0, -4.0F), 129);
  EXPECT_EQ(float_as(DType::kF8E8M0, 1.25F), 127);
  EXPECT_EQ(float_as(DType::kF8E8M0, 1.5F), 128);
  EXPECT_EQ(float_as(DType::kF8E8M0, 0.0F), 0);
  EXPECT_EQ(float_as(DType::kF8E8M0, kInf), 255);
  EXPECT_EQ((cast_one<std::uint8_t, float>(DType::kF8E8M0, 0, DType::kF32)), 0x1p-127F);
}

TEST(Cast, doubles_are_rounded_to_float_first) {
  // Just above a tie of half: as a float it is the tie, and goes to even. torch does the same.
  EXPECT_EQ((cast_one<double, std::uint16_t>(DType::kF64, 1.0 + 0x1p-11 + 0x1p-40, DType::kF16)), 0x3C00);
}

TEST(Minifloat, codes_are_worth_what_the_definition_says) {
  for (unsigned code = 0; code < 0x7C00; ++code) {
    const int exponent = static_cast<int>(code >> 10);
    const double mantissa = (code & 0x3FF) / 1024.0;
    const double expected = exponent == 0 ? std::ldexp(mantissa, -14) : std::ldexp(1 + mantissa, exponent - 15);
    ASSERT_EQ(std::bit_cast<float>(minifloat::half_to_float(static_cast<std::uint16_t>(code))), expected);
  }
  for (unsigned code = 0; code < 0x7F; ++code) {
    const int exponent = static_cast<int>(code >> 3);
    const double mantissa = (code & 7) / 8.0;
    const double expected = exponent == 0 ? std::ldexp(mantissa, -6) : std::ldexp(1 + mantissa, exponent - 7);
    ASSERT_EQ(std::bit_cast<float>(minifloat::e4m3_to_float(static_cast<std::uint8_t>(code))), expected);
  }
}

TEST(CountNotFinite, finds_nan_and_infinity_of_every_type_that_has_them) {
  const std::vector<float> floats = {0.0F, kInf, -kInf, kNan, 1.0F, std::numeric_limits<float>::max(), -kNan};
  const Bytes source = bytes_of(floats);
  EXPECT_EQ(count_not_finite(DType::kF32, source.data(), floats.size()), 4U);
  const auto count_as = [&](DType dtype) {
    return count_not_finite(dtype, cast(DType::kF32, source, dtype).data(), floats.size());
  };
  EXPECT_EQ(count_as(DType::kF64), 4U);
  EXPECT_EQ(count_as(DType::kF16), 5U);  // the largest float overflows
  EXPECT_EQ(count_as(DType::kBF16), 5U);
  EXPECT_EQ(count_as(DType::kF8E5M2), 5U);
  EXPECT_EQ(count_as(DType::kF8E4M3), 2U);  // has no infinities, and stops at the largest
  EXPECT_EQ(count_as(DType::kF8E8M0), 5U);
  EXPECT_EQ(count_as(DType::kF8E4M3FNUZ), 5U);
  EXPECT_EQ(count_as(DType::kF8E5M2FNUZ), 5U);
}

TEST(CountNotFinite, a_complex_number_counts_once) {
  const Bytes source = bytes_of(std::vector<float>{kNan, kNan, 0.0F, kInf, kInf, 0.0F, 1.0F, 2.0F});
  EXPECT_EQ(count_not_finite(DType::kC64, source.data(), 4), 3U);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Bytes doubles = bytes_of(std::vector<double>{nan, nan, 0.0, 1.0, -HUGE_VAL, 2.0});
  EXPECT_EQ(count_not_finite(DType::kC128, doubles.data(), 3), 2U);
  const Bytes halves = bytes_of(std::vector<std::uint16_t>{0x7E00, 0x7C00, 0x3C00, 0x0000, 0x3C00, 0xFC00});
  EXPECT_EQ(count_not_finite(DType::kC32, halves.data(), 3), 2U);
}

TEST(CountNotFinite, types_without_them_count_none) {
  const Bytes ones(16, std::byte{0xFF});
  for (const DType dtype : {DType::kBool, DType::kF4, DType::kF6E2M3, DType::kF6E3M2, DType::kU8, DType::kI64}) {
    EXPECT_EQ(count_not_finite(dtype, ones.data(), 2), 0U) << dtype_name(dtype);
  }
}

TEST(CountNotFinite, misaligned_source_is_fine) {
  Bytes source = bytes_of(std::vector<float>{0.0F, kInf, 1.0F});
  source.insert(source.begin(), std::byte{0});
  EXPECT_EQ(count_not_finite(DType::kF32, source.data() + 1, 3), 1U);
}

}  // namespace
}  // namespace penstock
