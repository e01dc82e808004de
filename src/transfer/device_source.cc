#include "transfer/device_source.h"

#include <algorithm>
#include <utility>

#include "transfer/origin.h"
#include "transfer/strided.h"

namespace penstock {

DeviceSource::DeviceSource(std::shared_ptr<Lanes> lanes, std::uint64_t address, const std::optional<DeviceForm>& form,
                           std::shared_ptr<void> owner)
    : lanes_(std::move(lanes)), address_(address), owner_(std::move(owner)) {
  if (!form) return;
  form_ = std::make_shared<const Form>(
      Form{StridedFetch(form->shape, form->byte_strides, dtype_bits(form->from) / 8), form->from, form->to});
}

std::shared_ptr<const DeviceSource> DeviceSource::moved(std::int64_t distance, std::shared_ptr<void> owner) const {
  const std::shared_ptr<DeviceSource> copy(new DeviceSource(*this));
  copy->address_ += static_cast<std::uint64_t>(distance);
  copy->owner_ = std::move(owner);
  return copy;
}

DeviceSource::Round DeviceSource::plan(std::uint64_t offset, std::uint64_t nbytes, std::uint64_t room) const {
  const std::uint64_t width = dtype_bits(form_->to) / 8;
  Round round;
  round.skipped = offset % width;
  const std::uint64_t wanted = (round.skipped + nbytes + width - 1) / width;
  round.box = form_->elements.choose(offset / width, wanted, room);
  if (round.box.elements > 0) round.nbytes = std::min(nbytes, round.box.elements * width - round.skipped);
  return round;
}

void DeviceSource::fetch(const Round& round, Lane& lane, std::byte* block) const {
  round.box.for_each([&](std::int64_t from, std::uint64_t to) {
    lane.to_host(block + to, address_ + static_cast<std::uint64_t>(from), round.box.stretch);
  });
}

void DeviceSource::finish(const Round& round, const std::byte* block, std::span<std::byte> out) const {
  const StridedBox& box = round.box;
  const std::uint64_t width = dtype_bits(form_->from) / 8;
  const std::byte* const first = block + box.first;
  Origin elements;
  if (is_contiguous(box.shape, box.strides, width)) {
    elements.data = first;
  } else {
    elements.fill = [reader = StridedReader(first, box.shape, box.strides, width)](
                        std::uint64_t offset, std::span<std::byte> bytes) { reader.read(offset, bytes); };
  }
  if (form_->from != form_->to) elements = cast_origin(std::move(elements), form_->from, form_->to);
  if (elements.data != nullptr) {
    std::copy_n(elements.data + round.skipped, out.size(), out.data());
  } else {
    by_whole_elements(std::move(elements), dtype_bits(form_->to) / 8).fill(round.skipped, out);
  }
}

}  // namespace penstock
