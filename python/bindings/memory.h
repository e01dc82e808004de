// Memory: a block that loaded tensors point into, as Python sees it.
//
// It exports the buffer protocol (writable bytes; not of a device) and owns a share of the block, so whatever views it
// keeps it alive. All tensors of a load that lie in the same block share one Memory.
#pragma once

#include <cstddef>
#include <memory>

#include "device.h"

namespace penstock::python {

class Memory {
 public:
  Memory(std::shared_ptr<void> owner, std::byte* data, std::size_t size, DlpackDevice device = {})
      : owner_(std::move(owner)), data_(data), size_(size), device_(device) {}
  Memory(Memory&&) = default;
  ~Memory();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  DlpackDevice device() const { return device_; }

 private:
  std::shared_ptr<void> owner_;
  std::byte* data_;
  std::size_t size_;
  DlpackDevice device_;
};

// A list of Memory objects, and one row per tensor: (name, dtype, shape, index of its memory, offset in it, nbytes).
// An empty tensor has no memory: its index is -1.
struct Exported {
  nb::list memories;
  nb::list rows;
};

Exported export_tensors(std::span<const Tensor> tensors, DlpackDevice device = {});

}  // namespace penstock::python
