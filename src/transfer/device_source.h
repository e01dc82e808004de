// DeviceSource: a tensor in memory of a device, and how its bytes become those that are stored.
//
// Most lie there as they are stored, and are fetched to where they are needed. Those of a strided tensor, or one that
// is converted, are fetched to a block beside that place and put in order by the host, round by round. Immutable, so
// safe from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/device.h"
#include "penstock/dtype.h"
#include "transfer/strided_fetch.h"

namespace penstock {

// How a tensor lies in memory, where that is not how it is stored.
struct DeviceForm {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> byte_strides;
  DType from = DType::kU8;  // in memory
  DType to = DType::kU8;    // as it is stored
};

class DeviceSource {
 public:
  // `address`: of the first element. `owner` (optional): what the memory belongs to, where it is ours.
  DeviceSource(std::shared_ptr<Lanes> lanes, std::uint64_t address, const std::optional<DeviceForm>& form,
               std::shared_ptr<void> owner = {});

  // The same tensor, copied to another place of the device.
  std::shared_ptr<const DeviceSource> moved(std::int64_t distance, std::shared_ptr<void> owner) const;

  Lanes& lanes() const noexcept { return *lanes_; }
  std::uint64_t address() const noexcept { return address_; }
  // Bytes lie at their address: no rounds are needed.
  bool is_plain() const noexcept { return form_ == nullptr; }

  // Bytes that are made in one round. Empty where there is no room for a single element.
  struct Round {
    std::uint64_t nbytes = 0;
    std::uint64_t skipped = 0;  // bytes of the first element that are not asked for
    StridedBox box;
  };

  // For `nbytes` from `offset` on, or fewer, through `room` bytes.
  Round plan(std::uint64_t offset, std::uint64_t nbytes, std::uint64_t room) const;
  // Starts to fetch what a round needs.
  void fetch(const Round& round, Lane& lane, std::byte* block) const;
  // Makes its bytes out of what was fetched.
  void finish(const Round& round, const std::byte* block, std::span<std::byte> out) const;

 private:
  struct Form {
    StridedFetch elements;
    DType from;
    DType to;
  };

  DeviceSource(const DeviceSource&) = default;

  std::shared_ptr<Lanes> lanes_;
  std::uint64_t address_;
  std::shared_ptr<const Form> form_;
  std::shared_ptr<void> owner_;
};

}  // namespace penstock
