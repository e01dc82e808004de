// Raw deflate streams, as zip archives have them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace penstock {

// Fills the span with the next bytes of the stream, all of it.
using ReadCompressed = std::function<void(std::span<std::byte>)>;
// Is given what comes out, piece by piece.
using TakeInflated = std::function<void(std::span<const std::byte>)>;

// The most that deflate can make of so many bytes: a size beyond that is a lie.
std::uint64_t most_inflated(std::uint64_t compressed_nbytes) noexcept;

// Inflates a stream of exactly `compressed_nbytes` to exactly `nbytes`, with a fixed amount of memory. Returns what is
// wrong with the stream, or nullptr; what came out until then was passed on.
const char* inflate(std::uint64_t compressed_nbytes, std::uint64_t nbytes, const ReadCompressed& read,
                    const TakeInflated& take);

}  // namespace penstock
