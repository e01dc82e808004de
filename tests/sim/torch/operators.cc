// The operators that torch needs of a backend. Copies between host and device are the driver's and count as such. What
// a device would do by a kernel is done by the host, behind the driver's back, once the stream has come so far: no
// copy.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <chrono>
#include <thread>

#include "../sim.h"
#include "allocator.h"

namespace sim_torch {
namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

bool is_ours(const Tensor& tensor) {
  return tensor.device().is_privateuseone();
}

Tensor empty(IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout>, optional<at::Device> device,
             optional<bool>, optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, device_allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<at::ScalarType> dtype, optional<at::Layout>,
                     optional<at::Device> device, optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, device_allocator(), kKeys, c10::dtype_or_default(dtype));
}

void grow(const Tensor& self, const c10::Storage& storage, std::size_t nbytes) {
  if (nbytes > storage.nbytes() && self.numel() >= 0) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(storage, nbytes);
  }
}

const Tensor& resize(const Tensor& self, IntArrayRef size, optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  const auto offset = static_cast<std::size_t>(self.storage_offset());
  grow(self, self.storage(), at::detail::computeStorageNbytesContiguous(size, self.itemsize(), offset));
  impl->set_sizes_contiguous(size);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, std::int64_t offset, IntArrayRef size, IntArrayRef stride) {
  const auto first = static_cast<std::size_t>(offset);
  grow(self, source,
       stride.empty() ? at::detail::computeStorageNbytesContiguous(size, self.itemsize(), first)
                      : at::detail::computeStorageNbytes(size, stride, self.itemsize(), first));
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

Tensor& set_nothing(Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  return self.set_(c10::Storage(c10::Storage::use_byte_size_t(), 0, device_allocator(), true), 0, {0}, {});
}

// Where the elements lie, gaps included.
std::size_t span(const Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
}

void settle(const Tensor& tensor) {
  const Context context(tensor.device().index());
  SIM_CHECK(cuStreamSynchronize(current_stream(tensor.device().index())));
}

// A kernel's view of the elements: a host tensor of the same sizes and strides.
Tensor peek(const Tensor& tensor) {
  const std::size_t nbytes = span(tensor);
  const Tensor bytes = at::empty({static_cast<std::int64_t>(nbytes)}, at::kByte);
  settle(tensor);
  TORCH_CHECK(sim_peek(bytes.data_ptr(), reinterpret_cast<std::uint64_t>(tensor.data_ptr()), nbytes) == 0);
  Tensor host = at::empty({0}, tensor.options().device(at::kCPU));
  host.set_(bytes.storage(), 0, tensor.sizes(), tensor.strides());
  host._set_conj(tensor.is_conj());
  host._set_neg(tensor.is_neg());
  return host;
}

void poke(const Tensor& tensor, const Tensor& host) {
  TORCH_CHECK(sim_poke(reinterpret_cast<std::uint64_t>(tensor.data_ptr()), host.data_ptr(), span(tensor)) == 0);
}

void run_copy_kernel(const Tensor& to, const Tensor& from) {
  Tensor target = peek(to);
  target.copy_(peek(from));
  poke(to, target);
}

// While a kernel is played by the host.
thread_local bool in_kernel = false;

bool is_plain(const Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

void to_device(const Tensor& to, const Tensor& from, bool non_blocking) {
  if (in_kernel) {
    settle(to);
    return poke(to, from);
  }
  const int device = to.device().index();
  const Context context(device);
  const auto address = reinterpret_cast<CUdeviceptr>(to.data_ptr());
  SIM_CHECK(cuMemcpyHtoDAsync_v2(address, from.data_ptr(), from.nbytes(), current_stream(device)));
  if (!non_blocking || !is_pinned(from.data_ptr())) settle(to);
}

void to_host(const Tensor& to, const Tensor& from, bool non_blocking) {
  if (in_kernel) {
    settle(from);
    TORCH_CHECK(sim_peek(to.data_ptr(), reinterpret_cast<std::uint64_t>(from.data_ptr()), from.nbytes()) == 0);
    return;
  }
  const int device = from.device().index();
  const Context context(device);
  const auto address = reinterpret_cast<CUdeviceptr>(from.data_ptr());
  SIM_CHECK(cuMemcpyDtoHAsync_v2(to.data_ptr(), address, from.nbytes(), current_stream(device)));
  if (!non_blocking || !is_pinned(to.data_ptr())) settle(from);
}

void copy_within(const Tensor& to, const Tensor& from) {
  if (!is_plain(to) || !is_plain(from) || to.dtype() != from.dtype()) return run_copy_kernel(to, from);
  device_allocator()->copy_data(to.data_ptr(), from.data_ptr(), to.nbytes());
}

// Device tensors are made plain by kernels, host tensors by the host.
Tensor plain_of(const Tensor& tensor, at::ScalarType dtype, at::Device device) {
  if (is_plain(tensor) && tensor.scalar_type() == dtype && tensor.device() == device) return tensor;
  return at::empty(tensor.sizes(), tensor.options().dtype(dtype).device(device));
}

void upload(const Tensor& to, const Tensor& from, bool non_blocking) {
  const Tensor ready = from.to(to.scalar_type()).contiguous().resolve_conj().resolve_neg();
  const Tensor target = plain_of(to, to.scalar_type(), to.device());
  to_device(target, ready, non_blocking && ready.is_same(from));
  if (!target.is_same(to)) run_copy_kernel(to, target);
}

void download(const Tensor& to, const Tensor& from, bool non_blocking) {
  const Tensor ready = plain_of(from, from.scalar_type(), from.device());
  if (!ready.is_same(from)) run_copy_kernel(ready, from);
  const Tensor target = plain_of(to, from.scalar_type(), to.device());
  to_host(target, ready, non_blocking && target.is_same(to));
  if (!target.is_same(to)) to.copy_(target);
}

Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return to;
  const Tensor from = self.expand_as(to);
  if (!is_ours(from)) {
    upload(to, from, non_blocking);
  } else if (!is_ours(to)) {
    download(to, from, non_blocking);
  } else if (from.device() == to.device()) {
    copy_within(to, from);
  } else {
    upload(to, from.cpu(), false);
  }
  return to;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  if (self.sizes() != to.sizes()) to.resize_(self.sizes());
  return copy_from(self, to, false);
}

struct InKernel {
  const bool before = std::exchange(in_kernel, true);
  ~InKernel() { in_kernel = before; }
};

at::Scalar local_scalar(const Tensor& self) {
  const InKernel kernel;
  return self.cpu().item();
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const InKernel kernel;
  at::native::cpu_fallback(op, stack, true);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("resize_", resize);
  library.impl("set_", set_nothing);
  library.impl("set_.source_Storage", static_cast<Tensor& (*)(Tensor&, at::Storage)>(at::native::set_));
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

// A copy resolves these bits itself; by default they would be resolved by a copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace sim_torch

// For ctypes: a slow kernel of the calling thread's current stream, which fills memory in the end.
extern "C" __attribute__((visibility("default"))) void sim_torch_fill_late(int device, std::uint64_t address,
                                                                           std::uint64_t nbytes, unsigned char value,
                                                                           int milliseconds) {
  const sim_torch::Context context(device);
  const Handle stream = sim_torch::current_stream(device);
  cuLaunchHostFunc(
      stream,
      [](void* argument) {
        std::this_thread::sleep_for(std::chrono::milliseconds(reinterpret_cast<std::intptr_t>(argument)));
      },
      reinterpret_cast<void*>(static_cast<std::intptr_t>(milliseconds)));
  cuMemsetD8Async(address, value, nbytes, stream);
}
