// Tensors that lie on devices: found when a save begins, each asked for once.
#include <optional>
#include <utility>

#include "api/save/writer_state.h"
#include "transfer/device_source.h"

namespace penstock {
namespace {

// Nothing where bytes are stored as they lie there.
std::optional<DeviceForm> form_of(const AddedTensor& tensor) {
  if (tensor.byte_strides.empty() && tensor.memory_dtype == tensor.spec.dtype) return std::nullopt;
  DeviceForm form{tensor.spec.shape, tensor.byte_strides, tensor.memory_dtype, tensor.spec.dtype};
  if (!form.byte_strides.empty()) return form;
  std::int64_t elements = 1;
  for (const std::int64_t length : tensor.spec.shape) elements *= length;
  form.shape = {elements};
  form.byte_strides = {static_cast<std::int64_t>(dtype_bits(form.from) / 8)};
  return form;
}

}  // namespace

void find_devices(Writer::State& state) {
  for (AddedTensor& tensor : state.tensors) {
    if (tensor.data == nullptr || tensor.spec.nbytes == 0) continue;
    const MemoryPlace place = find_place(tensor.data);
    state.has_shared_memory |= place.unified;
    if (place.device == nullptr) continue;
    tensor.lanes = state.devices.lanes(place.device);
    const auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(tensor.data));
    tensor.origin = {};
    tensor.origin.device = std::make_shared<const DeviceSource>(tensor.lanes, address, form_of(tensor));
  }
}

void wait_for_streams(Writer::State& state) {
  state.devices.wait_for_caller(state.options.streams);
  if (!state.has_shared_memory) return;
  for (const DeviceStream& stream : state.options.streams) {
    state.streams.push_back(std::make_shared<Lanes>(open_device(stream.device)));
    DeviceUse::wait_for(*state.streams.back(), stream);
  }
}

void settle_streams(Writer::State& state) {
  for (const auto& lanes : std::exchange(state.streams, {})) lanes->settle();
}

}  // namespace penstock
