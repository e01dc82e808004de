// Sizes, rates, counts and durations as people read them. Sizes of penstock/size.h are among them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "penstock/size.h"

namespace penstock::cli {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

using penstock::format_size;

// A size that a block or a file was set to: "4 MiB", "512 KiB", "1.5 GiB"; no decimal where none is needed.
std::string format_round_size(std::uint64_t nbytes);

// GiB per second as a number, for sums and ratios; 0 when no time passed.
double gib_per_second(std::uint64_t nbytes, double seconds);

// "1.81 GiB/s".
std::string format_rate(std::uint64_t nbytes, double seconds);

// "1,100,048,384".
std::string format_count(std::uint64_t count);

// "1 tensor", "1,204 tensors".
std::string format_count_of(std::uint64_t count, std::string_view singular);

// A length of time to read: "850 ms", "12.3 s", "4:05", "1:02:03".
std::string format_seconds(double seconds);

// A time to wait, as a clock: "0:07", "1:02:03".
std::string format_clock(double seconds);

}  // namespace penstock::cli
