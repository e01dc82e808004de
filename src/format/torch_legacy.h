// The head of a legacy torch file: its five pickles, which say what storages follow and in which order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "format/layout.h"
#include "format/torch_tree.h"

namespace penstock::torch {

// Before the bytes of each storage stands its count of elements.
inline constexpr std::uint64_t kLegacyCountBytes = 8;

struct LegacyHead {
  std::unique_ptr<const std::string> text;  // of all five pickles; the tree looks into it
  std::uint64_t object_begin = 0;           // where the pickle of the object lies in the text
  std::uint64_t object_end = 0;
  std::unique_ptr<const Tree> tree;
  std::vector<std::uint32_t> order;  // the storages by their numbers in the tree, as their bytes follow

  std::uint64_t nbytes() const { return text->size(); }
  std::string_view object() const { return std::string_view(*text).substr(object_begin, object_end - object_begin); }
};

// Throws Error(kFormat or kUnsupportedFormat). What follows the pickles is not looked at.
LegacyHead read_legacy_head(const ByteSource& source);

}  // namespace penstock::torch
