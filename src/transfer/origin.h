// Origin: where the bytes of one part of a file come from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "penstock/dtype.h"

namespace penstock {

class DeviceSource;

// Contiguous memory of the host, or a function that produces any range of the bytes, or memory of a device. The last
// has neither address nor function: who forgets that it exists can't touch it.
struct Origin {
  const std::byte* data = nullptr;
  std::function<void(std::uint64_t offset, std::span<std::byte> bytes)> fill = {};
  std::shared_ptr<const DeviceSource> device = {};
  std::uint64_t device_offset = 0;  // the first byte, of those that `device` gives
};

// What lies `nbytes` further on.
Origin skip(const Origin& origin, std::uint64_t nbytes);

// Elements of an origin of the host as another type. What has to be produced itself passes through a small buffer.
// Asked for whole elements only.
Origin cast_origin(Origin origin, DType from, DType to);

// A function that produces a tensor is promised whole elements of `width` bytes, but a file is cut into blocks at any
// byte: this one takes any range.
Origin by_whole_elements(Origin origin, std::uint64_t width);

}  // namespace penstock
