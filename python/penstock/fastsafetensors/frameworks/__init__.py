"""What the loaders ask of a library of tensors, and the wrapper by which its tensors are passed around.

Each has a module here: torch's and NumPy's, and paddle's by way of DLPack.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ..._frameworks import require_torch
from ...errors import ArgumentError, UnsupportedError
from ..cpp import gds_device_buffer
from ..st_types import DTYPE_SIZES, Device, DType

if TYPE_CHECKING:
    from ..common import SafeTensorsMetadata


@dataclass
class TensorBase:
    """A tensor of some library, with its type and device by the names of the file."""

    device: Device
    dtype: DType

    @abstractmethod
    def get_raw(self) -> Any:
        """The library's own tensor."""

    @abstractmethod
    def get_shape(self) -> list[int]:
        """The shape that the file has, packed elements counted one by one."""

    @abstractmethod
    def get_nbytes(self) -> int:
        """Bytes of its elements."""

    @abstractmethod
    def copy_to_buffer(self, buf: memoryview) -> None:
        """Copies its elements, in a row, to a buffer."""

    @abstractmethod
    def contiguous(self) -> TensorBase:
        """The same with its elements in a row."""

    @abstractmethod
    def to(self, device: Device | None = None, dtype: DType = DType.AUTO) -> TensorBase:
        """The same on a device, converted to a type."""

    @abstractmethod
    def clone(self) -> TensorBase:
        """A copy."""

    @abstractmethod
    def detach(self) -> TensorBase:
        """The same memory, outside of any graph of gradients."""

    @abstractmethod
    def view(self, dtype: DType) -> TensorBase:
        """The same bytes as another type."""

    @abstractmethod
    def __getitem__(self, _val: Any) -> TensorBase:
        """A part of it."""

    def reshape(self, shape: list[int]) -> TensorBase:
        """The same elements in another shape."""
        raise UnsupportedError(f"{type(self).__name__} can't be reshaped")

    def data_ptr(self) -> int:
        """The address of the first element."""
        raise UnsupportedError(f"{type(self).__name__} does not tell its address")


T = TypeVar("T", bound=TensorBase)


class ProcessGroupBase(ABC, Generic[T]):
    """Ranks that load together."""

    @abstractmethod
    def size(self) -> int:
        """How many there are."""

    @abstractmethod
    def rank(self) -> int:
        """Which one this is."""

    @abstractmethod
    def broadcast(self, dst: T, rank: int) -> None:
        """Fills `dst` on every rank with that of one rank."""

    @abstractmethod
    def scatter(self, dst: T, scatter_list: list[T], src: int) -> None:
        """Fills `dst` on each rank with its entry of the list of rank `src`."""

    @abstractmethod
    def send(self, t: T, dst_rank: int, tag: int) -> None:
        """Sends a tensor to one rank."""

    @abstractmethod
    def recv(self, t: T, src_rank: int, tag: int) -> None:
        """Fills a tensor with what one rank sends."""


K = TypeVar("K", bound="ProcessGroupBase[Any]")


class FrameworkOpBase(ABC, Generic[T, K]):
    """What the loaders ask of a library of tensors."""

    def broadcast_contiguous_run(
        self, pg: K, source_tensors: list[T], frames: list[Any], src_rank: int, device: Device
    ) -> list[T] | None:
        """Broadcasts tensors that lie in a row as one; None: they are to be broadcast one by one."""
        return None

    @abstractmethod
    def get_name(self) -> str:
        """Its name: "pytorch", "numpy", "paddle"."""

    @abstractmethod
    def get_device(self, device: str, pg: K) -> Device:
        """The device of a name."""

    @abstractmethod
    def set_device(self, device: Device) -> None:
        """Makes it the current one."""

    @abstractmethod
    def alloc_tensor_memory(self, length: int, dev: Device) -> gds_device_buffer:
        """Memory for tensors, until `free_tensor_memory`."""

    @abstractmethod
    def free_tensor_memory(self, gbuf: gds_device_buffer, dev: Device) -> None:
        """Lets go of it."""

    @abstractmethod
    def get_empty_tensor(self, shape: list[int], dtype: DType, device: Device) -> T:
        """A tensor with any elements; the shape is the file's."""

    @abstractmethod
    def concat_tensors(self, tensors: list[T], dim: int) -> T:
        """Tensors one after the other in a dimension."""

    @abstractmethod
    def copy_tensor(self, dst: T, src: T) -> None:
        """Copies elements."""

    def wrap_tensor(self, tensor: Any) -> T:
        """The wrapper of a tensor, without a copy."""
        raise UnsupportedError(f"{self.get_name()} has no wrapper for its own tensors")

    def get_dtype_size(self, dtype: DType) -> float:
        """Bytes of an element, less than one where they are packed."""
        return float(DTYPE_SIZES[dtype])

    @abstractmethod
    def from_dlpack(self, dl_tensor: Any, device: Device, dtype: DType) -> T:
        """A tensor of a DLPack capsule."""

    @abstractmethod
    def get_cuda_ver(self) -> str:
        """The GPU library and its version, such as "cuda-12.8" or "hip-6.2"; "0.0" without a GPU."""

    def get_runtime_lib_dirs(self) -> list[str]:
        """Folders with GPU libraries that come with it."""
        return []

    @abstractmethod
    def get_device_ptr_align(self) -> int:
        """Bytes to which it wants its tensors aligned."""

    @abstractmethod
    def as_workaround_dtype(self, dtype: DType) -> DType:
        """The type by which a type passes through DLPack."""

    def get_storage_shape(self, dtype: DType, shape: list[int], strides: list[int]) -> tuple[list[int], list[int]]:
        """Shape and strides in units of what passes through DLPack: packed types pass as a row of bytes."""
        if self.get_dtype_size(dtype) >= 1:
            return shape, strides
        native = self.get_native_shape(dtype, shape)
        count = 1
        for size in native:
            count *= size
        return [count], [1]

    def get_native_shape(self, dtype: DType, st_shape: list[int]) -> list[int]:
        """The library's shape of what has this shape in the file: it counts packed elements by the byte."""
        per_byte = _elements_per_byte(dtype)
        if per_byte == 1:
            return st_shape
        _check_packed(dtype, st_shape, per_byte)
        return [*st_shape[:-1], st_shape[-1] // per_byte]

    def get_native_slices(self, dtype: DType, st_shape: list[int], slices: tuple[Any, ...]) -> tuple[Any, ...]:
        """Slices of the file's shape as those of the library's."""
        per_byte = _elements_per_byte(dtype)
        if per_byte == 1 or not st_shape or len(slices) < len(st_shape):
            return slices
        return (*slices[: len(st_shape) - 1], _native_index(dtype, slices[len(st_shape) - 1], st_shape[-1], per_byte))

    def iter_buffer_views(
        self,
        metadata: SafeTensorsMetadata,
        gbuf: gds_device_buffer,
        device: Device,
        copy_start_offset: int,
        names: set[str] | None,
        owner: Any = None,
    ) -> Iterator[tuple[str, T]] | None:
        """Tensors over one block of memory; None: they are to be made one by one."""
        return None

    def synchronize(self, device: Device) -> None:
        """Waits for what is queued on the device."""

    def synchronize_current_stream(self, device: Device) -> None:
        """Waits for what the caller has queued on the device."""
        self.synchronize(device)

    def get_global_rank(self) -> int:
        """This process's rank among all, 0 where it is alone."""
        return 0

    def get_device_name(self, index: int) -> str:
        """What the maker calls the device; "" without one."""
        return ""

    def mmap_file_pinned(self, filename: str, length: int, offset: int) -> TensorBase:
        """Bytes of a file in pinned memory of the host."""
        raise UnsupportedError(f"{self.get_name()} has no pinned memory")

    @abstractmethod
    def get_process_group(self, pg: Any | None) -> ProcessGroupBase[Any]:
        """The wrapper of a group; None and a `SingleGroup` are this process alone."""

    @abstractmethod
    def is_equal(self, wrapped: T, real: Any) -> bool:
        """Whether two tensors have the same elements."""

    @abstractmethod
    def randn(self, s: tuple[int, ...], device: Device, dtype: DType) -> T:
        """A tensor of random elements."""

    @abstractmethod
    def support_fp8(self) -> bool:
        """Whether it has types of eight bits."""

    @abstractmethod
    def get_mem_used(self) -> int:
        """Bytes that `alloc_tensor_memory` has given and not got back."""


def _elements_per_byte(dtype: DType) -> int:
    return 2 if dtype is DType.F4 else 1


def _check_packed(dtype: DType, shape: list[int], per_byte: int) -> None:
    if not shape or shape[-1] % per_byte != 0:
        raise ArgumentError(f"{dtype.value} of shape {shape}: the last dimension must be a multiple of {per_byte}")


def _native_index(dtype: DType, index: Any, size: int, per_byte: int) -> Any:
    what = f"{dtype.value} has {per_byte} elements to the byte"
    if isinstance(index, int):
        if index % per_byte != 0:
            raise ArgumentError(f"{what}: the index {index} is within one")
        return index // per_byte
    start, stop, step = index.indices(size)
    if step != 1:
        raise ArgumentError(f"{what}: a slice with the step {step} would take them apart")
    if start % per_byte != 0 or stop % per_byte != 0:
        raise ArgumentError(f"{what}: the slice {start}:{stop} begins or ends within one")
    return slice(start // per_byte, stop // per_byte, 1)


_MODULES = {"pt": "_torch", "pytorch": "_torch", "torch": "_torch", "numpy": "_numpy", "np": "_numpy"}


def get_framework_op(name: str) -> FrameworkOpBase[Any, Any]:
    """The library of that name: "pt" or "pytorch", "numpy", or "paddle" where it is installed."""
    module = "_paddle" if name == "paddle" else _MODULES.get(name)
    if module is None:
        raise ArgumentError(f'Unknown framework name: {name!r}; there are "pytorch" ("pt"), "numpy" and "paddle"')
    if module == "_torch":
        require_torch(f"framework={name!r}")
    return cast("FrameworkOpBase[Any, Any]", import_module(f"{__name__}.{module}").get_framework_op())
