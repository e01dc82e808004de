"""NumPy's arrays, which fastsafetensors lacks. Types that NumPy lacks are those of ml_dtypes, where it is installed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..._numpy import DTYPES, NAMES
from ...errors import ArgumentError, UnsupportedError
from ..common import SingleGroup
from ..cpp import gds_device_buffer
from ..st_types import Device, DeviceType, DType
from . import FrameworkOpBase, ProcessGroupBase, TensorBase


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """NumPy's own of a type; F4 is its bytes."""
    found = np.dtype(np.uint8) if dtype is DType.F4 else DTYPES.get(dtype.value)
    if found is None:
        raise UnsupportedError(f'NumPy has no {dtype.value}: install ml_dtypes, or use framework="pytorch"')
    return found


@dataclass
class NumpyTensor(TensorBase):
    """An array of NumPy."""

    real_tensor: Any

    def get_raw(self) -> Any:
        """The array."""
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
        flat = np.ascontiguousarray(self.real_tensor).reshape(-1).view(np.uint8)
        np.frombuffer(buf, np.uint8, count=flat.size)[:] = flat

    def contiguous(self) -> NumpyTensor:
        """The same with its elements in a row."""
        return self._with(np.ascontiguousarray(self.real_tensor).reshape(self.real_tensor.shape))

    def to(self, device: Device | None = None, dtype: DType = DType.AUTO) -> NumpyTensor:
        """The same, converted to a type; itself where it is that already. There is only the CPU."""
        if device is not None:
            _check_cpu(device)
        if dtype in (DType.AUTO, self.dtype):
            return self
        return NumpyTensor(self.device, dtype, self.real_tensor.astype(numpy_dtype(dtype)))

    def clone(self) -> NumpyTensor:
        """A copy."""
        return self._with(self.real_tensor.copy())

    def detach(self) -> NumpyTensor:
        """The same: arrays have no gradients."""
        return self

    def view(self, dtype: DType) -> NumpyTensor:
        """The same bytes as another type."""
        return NumpyTensor(self.device, dtype, self.real_tensor.view(numpy_dtype(dtype)))

    def __getitem__(self, _val: Any) -> NumpyTensor:
        return self._with(self.real_tensor[_val])

    def reshape(self, shape: list[int]) -> NumpyTensor:
        """The same elements in another shape."""
        return self._with(self.real_tensor.reshape(shape))

    def data_ptr(self) -> int:
        """The address of the first element."""
        return int(self.real_tensor.ctypes.data)

    def _with(self, array: Any) -> NumpyTensor:
        return NumpyTensor(self.device, self.dtype, array)


def _check_cpu(device: Device) -> None:
    if device.type is not DeviceType.CPU:
        raise ArgumentError(
            f'NumPy has arrays on the CPU only, and not on {device.as_str()!r}: use framework="pytorch"'
        )


class NumpyProcessGroup(ProcessGroupBase[NumpyTensor]):
    """A process group of torch.distributed that moves arrays; None is this process alone."""

    def __init__(self, real_pg: Any | None) -> None:
        self.real_pg = real_pg

    def size(self) -> int:
        """How many ranks there are."""
        return 1 if self.real_pg is None else int(self.real_pg.size())

    def rank(self) -> int:
        """Which one this is, within the group."""
        return 0 if self.real_pg is None else int(self.real_pg.rank())

    def broadcast(self, dst: NumpyTensor, rank: int) -> None:
        """Fills `dst` on every rank with that of one rank."""
        self._torch_group().broadcast(_as_torch(dst), rank)

    def scatter(self, dst: NumpyTensor, scatter_list: list[NumpyTensor], src: int) -> None:
        """Fills `dst` on each rank with its entry of the list of rank `src`."""
        self._torch_group().scatter(_as_torch(dst), [_as_torch(each) for each in scatter_list], src)

    def send(self, t: NumpyTensor, dst_rank: int, tag: int) -> None:
        """Sends an array to one rank."""
        self._torch_group().send(_as_torch(t), dst_rank, tag)

    def recv(self, t: NumpyTensor, src_rank: int, tag: int) -> None:
        """Fills an array with what one rank sends."""
        self._torch_group().recv(_as_torch(t), src_rank, tag)

    def _torch_group(self) -> ProcessGroupBase[Any]:
        from ._torch import TorchProcessGroup

        return TorchProcessGroup(self.real_pg)


def _as_torch(tensor: NumpyTensor) -> Any:
    """The array's bytes, its own memory, as a tensor: whoever has a group has torch."""
    import torch

    from ._torch import TorchTensor

    flat = tensor.real_tensor.reshape(-1).view(np.uint8)
    return TorchTensor(tensor.device, DType.U8, torch.from_numpy(flat))


class NumpyOp(FrameworkOpBase[NumpyTensor, NumpyProcessGroup]):
    """NumPy."""

    def __init__(self) -> None:
        self.mem_used = 0

    def get_name(self) -> str:
        """Its name."""
        return "numpy"

    def get_device(self, device: str, pg: NumpyProcessGroup) -> Device:
        """The CPU, which is the only one."""
        made = Device.from_str(str(device))
        _check_cpu(made)
        return made

    def set_device(self, device: Device) -> None:
        """There is only the CPU."""
        _check_cpu(device)

    def alloc_tensor_memory(self, length: int, dev: Device) -> gds_device_buffer:
        """Memory of the host."""
        memory = np.empty(length, np.uint8)
        self.mem_used += length
        return gds_device_buffer(int(memory.ctypes.data), length, False, memory)

    def free_tensor_memory(self, gbuf: gds_device_buffer, dev: Device) -> None:
        """Gives it back."""
        gbuf.owner = None
        self.mem_used -= gbuf.get_length()

    def get_empty_tensor(self, shape: list[int], dtype: DType, device: Device) -> NumpyTensor:
        """An array with any elements; the shape is the file's."""
        return NumpyTensor(device, dtype, np.empty(self.get_native_shape(dtype, shape), numpy_dtype(dtype)))

    def concat_tensors(self, tensors: list[NumpyTensor], dim: int) -> NumpyTensor:
        """Arrays one after the other in a dimension."""
        joined = np.concatenate([each.real_tensor for each in tensors], axis=dim)
        return NumpyTensor(tensors[0].device, tensors[0].dtype, joined)

    def copy_tensor(self, dst: NumpyTensor, src: NumpyTensor) -> None:
        """Copies elements."""
        dst.real_tensor[...] = src.real_tensor

    def wrap_tensor(self, tensor: Any) -> NumpyTensor:
        """The wrapper of an array, without a copy."""
        if not isinstance(tensor, (np.ndarray, np.generic)):
            raise ArgumentError(f"expected an array of NumPy, not {type(tensor).__name__}")
        dtype = tensor.dtype
        if dtype not in NAMES:
            raise UnsupportedError(f"{dtype} has no name in safetensors files")
        return NumpyTensor(Device(), DType(NAMES[dtype]), np.asarray(tensor))

    def from_dlpack(self, dl_tensor: Any, device: Device, dtype: DType) -> NumpyTensor:
        """An array of a DLPack capsule."""
        return NumpyTensor(device, dtype, np.from_dlpack(_Capsule(dl_tensor)))

    def get_cuda_ver(self) -> str:
        """ "0.0": NumPy has no GPU."""
        return "0.0"

    def get_device_ptr_align(self) -> int:
        """16, as the other frameworks: the same files are aligned for all."""
        return 16

    def as_workaround_dtype(self, dtype: DType) -> DType:
        """The type by which a type passes through DLPack: those of ml_dtypes pass as integers."""
        if dtype is DType.BF16:
            return DType.U16
        return DType.U8 if dtype.value.startswith(("F8_", "F4")) else dtype

    def get_process_group(self, pg: Any | None) -> NumpyProcessGroup:
        """The wrapper of a group; None and a `SingleGroup` are this process alone."""
        if isinstance(pg, NumpyProcessGroup):
            return pg
        if pg is None or isinstance(pg, SingleGroup):
            return NumpyProcessGroup(None)
        from ._torch import get_framework_op as torch_op

        return NumpyProcessGroup(torch_op().get_process_group(pg).real_pg)

    def is_equal(self, wrapped: NumpyTensor, real: Any) -> bool:
        """Whether two arrays have the same elements."""
        return bool(np.array_equal(wrapped.real_tensor, real))

    def randn(self, s: tuple[int, ...], device: Device, dtype: DType) -> NumpyTensor:
        """An array of random elements."""
        return NumpyTensor(device, dtype, np.random.default_rng().standard_normal(s).astype(numpy_dtype(dtype)))

    def support_fp8(self) -> bool:
        """Whether ml_dtypes is installed."""
        return "F8_E5M2" in DTYPES

    def get_mem_used(self) -> int:
        """Bytes that `alloc_tensor_memory` has given and not got back."""
        return self.mem_used


class _Capsule:
    """What np.from_dlpack takes: an object that gives the capsule."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@cache
def get_framework_op() -> NumpyOp:
    """The one of this process."""
    return NumpyOp()
