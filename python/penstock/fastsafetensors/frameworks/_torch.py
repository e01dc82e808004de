"""torch's tensors and process groups."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.dlpack import from_dlpack

from ..._torch import DTYPES, NAMES
from ..._torch.devices import device as torch_device
from ...errors import ArgumentError, UnsupportedError
from ..common import SingleGroup
from ..cpp import gds_device_buffer
from ..st_types import Device, DeviceType, DType
from . import FrameworkOpBase, ProcessGroupBase, TensorBase

dtype_convert: dict[DType, torch.dtype] = {DType(name): dtype for name, dtype in DTYPES.items()}
# Types that DLPack has no code for pass as bytes.
need_workaround_dtypes: dict[DType, DType] = {
    DType.F8_E5M2: DType.I8,
    DType.F8_E4M3: DType.I8,
    DType.F8_E5M2FNUZ: DType.I8,
    DType.F8_E4M3FNUZ: DType.I8,
    DType.F8_E8M0: DType.U8,
    DType.F4: DType.U8,
}


def fst_dtype(dtype: torch.dtype) -> DType:
    """The file's name for a dtype."""
    return DType(NAMES[dtype])


def to_device(device: torch.device) -> Device:
    """A device of torch's by the names that are used here."""
    try:
        return Device(DeviceType(device.type), device.index)
    except ValueError:
        if device.type == torch._C._get_privateuse1_backend_name():
            return Device(DeviceType.PRIVATEUSEONE, device.index)
        raise UnsupportedError(f"devices such as {str(device)!r} have no name in this API") from None


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's bytes: collectives know few types and move bytes of any."""
    if tensor.dim() == 0:
        tensor = tensor.reshape(1)
    return tensor.view(torch.uint8)


@dataclass
class TorchTensor(TensorBase):
    """A tensor of torch."""

    real_tensor: torch.Tensor

    def get_raw(self) -> torch.Tensor:
        """torch's own tensor."""
        return self.real_tensor

    def get_shape(self) -> list[int]:
        """The shape that the file has, packed elements counted one by one."""
        shape = list(self.real_tensor.shape)
        if self.dtype is DType.F4 and shape:
            shape[-1] *= 2
        return shape

    def get_nbytes(self) -> int:
        """Bytes of its elements."""
        return int(self.real_tensor.nbytes)

    def copy_to_buffer(self, buf: memoryview) -> None:
        """Copies its elements, in a row, to a buffer."""
        if self.real_tensor.numel() == 0:
            return
        flat = as_bytes(self.real_tensor.detach().contiguous()).reshape(-1)
        torch.frombuffer(buf, dtype=torch.uint8, count=flat.numel()).copy_(flat)

    def contiguous(self) -> TorchTensor:
        """The same with its elements in a row."""
        return self._with(self.real_tensor.contiguous())

    def to(self, device: Device | None = None, dtype: DType = DType.AUTO) -> TorchTensor:
        """The same on a device, converted to a type; itself where it is that already."""
        new_device = self.device if device is None else device
        new_dtype = self.dtype if dtype is DType.AUTO else dtype
        if new_device == self.device and new_dtype is self.dtype:
            return self
        moved = self.real_tensor
        if new_dtype is not self.dtype:
            moved = moved.to(torch_dtype(new_dtype))
        if new_device != self.device:
            moved = moved.to(new_device.as_str())
        return TorchTensor(new_device, new_dtype, moved)

    def clone(self) -> TorchTensor:
        """A copy."""
        return self._with(self.real_tensor.clone())

    def detach(self) -> TorchTensor:
        """The same memory, outside of any graph of gradients."""
        return self._with(self.real_tensor.detach())

    def view(self, dtype: DType) -> TorchTensor:
        """The same bytes as another type."""
        return TorchTensor(self.device, dtype, self.real_tensor.view(torch_dtype(dtype)))

    def __getitem__(self, _val: Any) -> TorchTensor:
        return self._with(self.real_tensor[_val])

    def reshape(self, shape: list[int]) -> TorchTensor:
        """The same elements in another shape."""
        return self._with(self.real_tensor.reshape(shape))

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self.real_tensor.data_ptr()

    def _with(self, tensor: torch.Tensor) -> TorchTensor:
        return TorchTensor(self.device, self.dtype, tensor)


def torch_dtype(dtype: DType) -> torch.dtype:
    """torch's own of a type; an error where it has none."""
    found = dtype_convert.get(dtype)
    if found is None:
        raise UnsupportedError(f"torch {torch.__version__} has no type for {dtype.value}")
    return found


@dataclass
class TorchProcessGroup(ProcessGroupBase[TorchTensor]):
    """A process group of torch.distributed; None is this process alone."""

    real_pg: dist.ProcessGroup | None

    def size(self) -> int:
        """How many ranks there are."""
        return 1 if self.real_pg is None else self.real_pg.size()

    def rank(self) -> int:
        """Which one this is, within the group."""
        return 0 if self.real_pg is None else self.real_pg.rank()

    def broadcast(self, dst: TorchTensor, rank: int) -> None:
        """Fills `dst` on every rank with that of one rank."""
        if self.real_pg is not None:
            dist.broadcast(as_bytes(dst.real_tensor), src=self._global(rank), group=self.real_pg)

    def scatter(self, dst: TorchTensor, scatter_list: list[TorchTensor], src: int) -> None:
        """Fills `dst` on each rank with its entry of the list of rank `src`."""
        if self.real_pg is None:
            return
        parts = [as_bytes(part.real_tensor) for part in scatter_list] if self.rank() == src else None
        dist.scatter(as_bytes(dst.real_tensor), parts, src=self._global(src), group=self.real_pg)

    def send(self, t: TorchTensor, dst_rank: int, tag: int) -> None:
        """Sends a tensor to one rank."""
        if self.real_pg is not None:
            dist.send(as_bytes(t.real_tensor), self._global(dst_rank), group=self.real_pg, tag=tag)

    def recv(self, t: TorchTensor, src_rank: int, tag: int) -> None:
        """Fills a tensor with what one rank sends."""
        if self.real_pg is not None:
            dist.recv(as_bytes(t.real_tensor), self._global(src_rank), group=self.real_pg, tag=tag)

    def _global(self, rank: int) -> int:
        """torch wants ranks as the whole world counts them."""
        assert self.real_pg is not None
        return int(dist.get_global_rank(self.real_pg, rank))


class TorchOp(FrameworkOpBase[TorchTensor, TorchProcessGroup]):
    """torch."""

    def __init__(self) -> None:
        self.mem_used = 0

    def get_name(self) -> str:
        """Its name."""
        return "pytorch"

    def get_device(self, device: str, pg: TorchProcessGroup) -> Device:
        """The device of a name, or of a torch.device."""
        return to_device(torch_device(device))

    def set_device(self, device: Device) -> None:
        """Makes it the current one."""
        if device.type is not DeviceType.CPU and device.index is not None:
            torch.get_device_module(device.as_str()).set_device(device.index)

    def alloc_tensor_memory(self, length: int, dev: Device) -> gds_device_buffer:
        """Memory from torch's allocators."""
        memory = torch.empty(length, dtype=torch.uint8, device=dev.as_str())
        self.mem_used += length
        return gds_device_buffer(memory.data_ptr(), length, dev.type is not DeviceType.CPU, memory)

    def free_tensor_memory(self, gbuf: gds_device_buffer, dev: Device) -> None:
        """Gives it back."""
        gbuf.owner = None
        self.mem_used -= gbuf.get_length()

    def get_empty_tensor(self, shape: list[int], dtype: DType, device: Device) -> TorchTensor:
        """A tensor with any elements; the shape is the file's."""
        native = self.get_native_shape(dtype, shape)
        return TorchTensor(device, dtype, torch.empty(native, dtype=torch_dtype(dtype), device=device.as_str()))

    def concat_tensors(self, tensors: list[TorchTensor], dim: int) -> TorchTensor:
        """Tensors one after the other in a dimension."""
        first = tensors[0]
        if first.dtype not in need_workaround_dtypes:
            return TorchTensor(first.device, first.dtype, torch.cat([each.real_tensor for each in tensors], dim=dim))
        joined = torch.cat([each.real_tensor.view(torch.uint8) for each in tensors], dim=dim)
        return TorchTensor(first.device, first.dtype, joined.view(torch_dtype(first.dtype)))

    def from_dlpack(self, dl_tensor: Any, device: Device, dtype: DType) -> TorchTensor:
        """A tensor of a DLPack capsule."""
        return TorchTensor(device, dtype, from_dlpack(dl_tensor))

    def copy_tensor(self, dst: TorchTensor, src: TorchTensor) -> None:
        """Copies elements."""
        dst.real_tensor.copy_(src.real_tensor)

    def wrap_tensor(self, tensor: torch.Tensor) -> TorchTensor:
        """The wrapper of a tensor, without a copy."""
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(f"expected a torch.Tensor, not {type(tensor).__name__}")
        if tensor.dtype not in NAMES:
            raise UnsupportedError(f"{tensor.dtype} has no name in safetensors files")
        return TorchTensor(to_device(tensor.device), fst_dtype(tensor.dtype), tensor)

    def get_cuda_ver(self) -> str:
        """The GPU library and its version; "0.0" without a GPU."""
        if not torch.cuda.is_available():
            return "0.0"
        return f"hip-{torch.version.hip}" if torch.version.hip else f"cuda-{torch.version.cuda}"

    def get_runtime_lib_dirs(self) -> list[str]:
        """The folder of torch's own libraries."""
        return [os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "lib")]

    def get_device_ptr_align(self) -> int:
        """16, for vector loads on GPUs."""
        return 16

    def as_workaround_dtype(self, dtype: DType) -> DType:
        """The type by which a type passes through DLPack."""
        return need_workaround_dtypes.get(dtype, dtype)

    def synchronize(self, device: Device) -> None:
        """Waits for what is queued on the device."""
        if device.type not in (DeviceType.CPU, DeviceType.META):
            torch.get_device_module(device.as_str()).synchronize()

    def synchronize_current_stream(self, device: Device) -> None:
        """Waits for what the caller has queued on the device."""
        if device.type is DeviceType.CUDA:
            torch.cuda.current_stream(device.as_str()).synchronize()
        else:
            self.synchronize(device)

    def get_global_rank(self) -> int:
        """This process's rank among all, 0 where it is alone."""
        return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0

    def get_device_name(self, index: int) -> str:
        """What the maker calls the GPU; "" without one."""
        if not 0 <= index < torch.cuda.device_count():
            return ""
        return str(torch.cuda.get_device_name(index))

    def mmap_file_pinned(self, filename: str, length: int, offset: int) -> TorchTensor:
        """Bytes of a file in pinned memory of the host."""
        mapped = torch.from_file(filename, size=offset + length, dtype=torch.uint8)
        return TorchTensor(Device(), DType.U8, mapped[offset:].pin_memory())

    def get_process_group(self, pg: Any | None) -> TorchProcessGroup:
        """The wrapper of a group; None and a `SingleGroup` are this process alone."""
        if isinstance(pg, TorchProcessGroup):
            return pg
        if pg is None or isinstance(pg, SingleGroup):
            return TorchProcessGroup(None)
        if not isinstance(pg, dist.ProcessGroup):
            raise ArgumentError(f"pg must be a torch.distributed.ProcessGroup, not {type(pg).__name__}")
        return TorchProcessGroup(pg)

    def is_equal(self, wrapped: TorchTensor, real: Any) -> bool:
        """Whether two tensors have the same elements."""
        if not isinstance(real, torch.Tensor):
            raise ArgumentError(f"a torch.Tensor is compared with another, not with a {type(real).__name__}")
        return bool(torch.all(wrapped.real_tensor.eq(real)))

    def randn(self, s: tuple[int, ...], device: Device, dtype: DType) -> TorchTensor:
        """A tensor of random elements."""
        made = torch.randn(s, device=device.as_str(), dtype=torch_dtype(dtype))
        return TorchTensor(device, dtype, made)

    def support_fp8(self) -> bool:
        """Whether this torch has types of eight bits."""
        return DType.F8_E5M2 in dtype_convert

    def get_mem_used(self) -> int:
        """Bytes that `alloc_tensor_memory` has given and not got back."""
        return self.mem_used


@cache
def get_framework_op() -> TorchOp:
    """The one of this process."""
    return TorchOp()
