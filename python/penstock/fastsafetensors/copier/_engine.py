"""The copier behind all names: one file by penstock's engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import ArgumentError
from .._read import OwnFiles
from ..common import SafeTensorsMetadata
from ..cpp import gds_device_buffer
from ..frameworks import FrameworkOpBase, TensorBase
from ..st_types import Device, DeviceType, DType
from .base import CopierInterface, DummyDeviceBuffer, Ranges, validated_byte_ranges, validated_chunk_allocation_size
from .registry import CopierConstructFunc

if TYPE_CHECKING:
    from ..allocation import SharedDeviceAllocation


class EngineCopier(CopierInterface):
    """Reads one file with penstock's engine. Each tensor has memory of its own, and only what is wanted is read."""

    def __init__(self, metadata: SafeTensorsMetadata, device: Device, framework: FrameworkOpBase[Any, Any]) -> None:
        self.metadata = metadata
        self.device = device
        self.framework = framework
        self._names: list[str] | None = None
        self._files: OwnFiles | None = None

    def set_byte_ranges(self, byte_ranges: Ranges | None) -> None:
        """Only tensors that lie in these parts of the file are read; None for all."""
        ranges = validated_byte_ranges(self.metadata, byte_ranges)
        if ranges is None:
            self._names = None
            return
        self._names = [name for name in self.metadata.tensors if self._is_in(name, ranges)]

    def set_chunk(self, byte_ranges: Ranges, names: set[str], allocation_size: int | None = None) -> None:
        """Only these tensors are read."""
        validated_byte_ranges(self.metadata, byte_ranges)
        validated_chunk_allocation_size(byte_ranges, allocation_size)
        unknown = sorted(names - set(self.metadata.tensors))
        if unknown:
            raise ArgumentError(f"{self.metadata.src}: there is no tensor {unknown[0]!r}")
        self._names = [name for name in self.metadata.tensors if name in names]

    @classmethod
    def chunk_transient_multiplier(cls, paths: list[str]) -> int:
        """Once: bytes are read to where they stay."""
        return 1

    @classmethod
    def fixed_device_overhead(cls, paths: list[str]) -> int:
        """None: what is staged is in the host's memory."""
        return 0

    def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> gds_device_buffer:
        """Begins to read. The tensors have their own memory, so that the buffer is an empty one."""
        if max_copy_block_size <= 0:
            raise ArgumentError(f"max_copy_block_size must be positive, not {max_copy_block_size}")
        names = list(self.metadata.tensors) if self._names is None else self._names
        kind = "numpy" if self.framework.get_name() == "numpy" else "torch"
        place = self.device
        if place.type is DeviceType.GPU:
            place = Device(DeviceType.CUDA, place.index)
        self._files = OwnFiles([self.metadata.src], names, place.as_str(), None, kind, read_ahead=bool(names))
        return DummyDeviceBuffer()

    def wait_io(
        self,
        gbuf: gds_device_buffer,
        dtype: DType = DType.AUTO,
        noalign: bool = False,
        owner: SharedDeviceAllocation | None = None,
    ) -> dict[str, TensorBase]:
        """The tensors, once all are read."""
        if self._files is None:
            raise ArgumentError(f"{self.metadata.src}: wait_io without submit_io")
        names = list(self.metadata.tensors) if self._names is None else self._names
        try:
            return {
                name: self.framework.wrap_tensor(self._files.take(name, keep=False)).to(dtype=dtype) for name in names
            }
        finally:
            self.finish_io()

    def finish_io(self) -> None:
        """Stops what runs."""
        if self._files is not None:
            self._files.close()
            self._files = None

    def _is_in(self, name: str, ranges: Ranges) -> bool:
        start, end = (self.metadata.header_length + offset for offset in self.metadata.tensors[name].data_offsets)
        return start == end or any(first <= start and end <= last for first, last in ranges)


def constructor_of(kind: Callable[..., EngineCopier], *more: Any) -> CopierConstructFunc:
    """A function that makes copiers of this kind, each with these further arguments."""

    def construct(
        metadata: SafeTensorsMetadata, device: Device, framework: FrameworkOpBase[Any, Any]
    ) -> CopierInterface:
        return kind(metadata, device, *more, framework)

    return construct
