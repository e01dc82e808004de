// The pickle of a flat state dict, opcode for opcode what torch.save makes of a dict of contiguous CPU tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "format/layout.h"

namespace penstock::torch {

enum class Flavour { kZip, kLegacy };

// The bytes of an element of its storage. Types that came after typed storages are saved as bytes.
std::uint64_t storage_width(DType dtype) noexcept;

// Each spec is a tensor over a storage of its own, whose key is its number. Throws Error(kUnsupported) for a dtype that
// torch does not have.
std::string pickle_state_dict(std::span<const TensorSpec> specs, Flavour flavour);

// Of a list of strings, for the legacy format.
std::string pickle_strings(std::span<const std::string> strings);

}  // namespace penstock::torch
