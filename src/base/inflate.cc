#include "base/inflate.h"

#include <isa-l/igzip_lib.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/bytes.h"

namespace penstock {
namespace {

constexpr std::size_t kBlock = 256 * kKiB;

// A match of 258 bytes takes two bits at the least; a few bytes more are the stream's own.
constexpr std::uint64_t kBestRatio = 1032;

}  // namespace

std::uint64_t most_inflated(std::uint64_t compressed_nbytes) noexcept {
  return checked_multiply(compressed_nbytes, kBestRatio).value_or(~std::uint64_t{0});
}

const char* inflate(std::uint64_t compressed_nbytes, std::uint64_t nbytes, const ReadCompressed& read,
                    const TakeInflated& take) {
  const auto state = std::make_unique<inflate_state>();  // too large for a stack
  isal_inflate_init(state.get());
  std::vector<std::byte> input(static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, compressed_nbytes)));
  std::vector<std::byte> output(kBlock);
  std::uint64_t left = compressed_nbytes;
  std::uint64_t made = 0;
  while (state->block_state != ISAL_BLOCK_FINISH) {
    if (state->avail_in == 0 && left > 0) {
      const std::span<std::byte> next =
          std::span(input).first(static_cast<std::size_t>(std::min<std::uint64_t>(input.size(), left)));
      read(next);
      state->next_in = reinterpret_cast<std::uint8_t*>(next.data());
      state->avail_in = static_cast<std::uint32_t>(next.size());
      left -= next.size();
    }
    const bool no_more_input = state->avail_in == 0;
    state->next_out = reinterpret_cast<std::uint8_t*>(output.data());
    state->avail_out = static_cast<std::uint32_t>(output.size());
    const int status = isal_inflate(state.get());
    if (status < 0) return "the compressed data is damaged";
    const std::size_t count = output.size() - state->avail_out;
    if (count > nbytes - made) return "it inflates to more than its size";
    if (count > 0) take(std::span<const std::byte>(output).first(count));
    made += count;
    if (count == 0 && no_more_input && state->block_state != ISAL_BLOCK_FINISH) return "the compressed data ends early";
  }
  if (made != nbytes) return "it inflates to less than its size";
  // The state keeps up to eight bytes that it looked at ahead.
  const std::uint64_t unused = left + state->avail_in + static_cast<std::uint64_t>(state->read_in_length / 8);
  return unused == 0 ? nullptr : "bytes follow the compressed data";
}

}  // namespace penstock
