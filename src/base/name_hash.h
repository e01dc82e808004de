// NameHash: the hash of names that come from files. std::hash has no secret, and names that collide in it are easily
// made: a table of n of them takes n^2 steps.
//
// SipHash-1-3 with a key that each process draws. Safe from several threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace penstock {

using HashKey = std::array<std::uint64_t, 2>;

std::uint64_t siphash13(const HashKey& key, std::string_view text) noexcept;

struct NameHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view name) const noexcept;
};

// By names that are there for as long as the table, or by names of its own.
template <typename Value, typename Name = std::string_view>
using NameMap = std::unordered_map<Name, Value, NameHash, std::equal_to<>>;
template <typename Name = std::string_view>
using NameSet = std::unordered_set<Name, NameHash, std::equal_to<>>;

}  // namespace penstock
