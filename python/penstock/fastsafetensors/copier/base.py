"""CopierInterface: what moves one file's tensors to a device, for code that makes its own."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from ...errors import ArgumentError, UnsupportedError
from ..common import SafeTensorsMetadata
from ..cpp import gds_device_buffer
from ..frameworks import TensorBase
from ..st_types import DType

if TYPE_CHECKING:
    from ..allocation import SharedDeviceAllocation

Ranges = list[tuple[int, int]]  # [start, end) within the file


def validated_byte_ranges(metadata: SafeTensorsMetadata, byte_ranges: Ranges | None) -> Ranges | None:
    """A copy of the ranges, which must be in order, apart, and within the file's data; None for the whole file."""
    if byte_ranges is None:
        return None
    checked: Ranges = []
    least = metadata.header_length
    for position, pair in enumerate(byte_ranges):
        start, end = _pair(pair, f"byte_ranges[{position}]")
        if not least <= start < end <= metadata.size_bytes:
            raise ArgumentError(
                f"{metadata.src}: byte_ranges[{position}] is [{start}, {end}), "
                f"which is not a part of the bytes {least} to {metadata.size_bytes}"
            )
        checked.append((start, end))
        least = end
    return checked


def validated_chunk_allocation_size(byte_ranges: Ranges, allocation_size: int | None) -> int | None:
    """The size, which must hold everything from the first range to the last; None for no more than that."""
    if allocation_size is None:
        return None
    size = _integer(allocation_size, "allocation_size")
    span = max(end for _, end in byte_ranges) - min(start for start, _ in byte_ranges) if byte_ranges else 1
    if size < max(span, 1):
        raise ArgumentError(f"allocation_size={size} is less than the {span} bytes of the ranges")
    return size


def _pair(value: Any, what: str) -> tuple[int, int]:
    try:
        start, end = value
    except (TypeError, ValueError):
        raise ArgumentError(f"{what} is {value!r}, not a pair of a start and an end") from None
    return _integer(start, what), _integer(end, what)


def _integer(value: Any, what: str) -> int:
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise ArgumentError(f"{what}: {value!r} is not an integer")


class CopierInterface(ABC):
    """Moves the tensors of one file to a device: `submit_io` begins, `wait_io` gives them.

    Loaders here read with penstock's engine; a copier is for code that drives one itself, or a `LazyTensorFactory`.
    """

    metadata: SafeTensorsMetadata

    def enable_tensor_readiness(self) -> bool:
        """Asks for tensors while others are still read; False where all are waited for."""
        return False

    def prepare_tensors(
        self, gbuf: gds_device_buffer, owner: SharedDeviceAllocation | None = None
    ) -> dict[str, TensorBase]:
        """The tensors before their bytes are there; each is to be waited for by `wait_tensor`."""
        raise UnsupportedError(f"{type(self).__name__} gives tensors only once they are read")

    def wait_tensor(self, name: str) -> None:  # noqa: B027 - nothing is to wait for
        """Returns when a prepared tensor's bytes are there."""

    def finish_io(self) -> None:  # noqa: B027 - nothing is under way
        """Returns when nothing is written to the buffer any more."""

    def set_byte_ranges(self, byte_ranges: Ranges | None) -> None:
        """Only these parts of the file are needed. Without a better method the whole file is read all the same."""
        validated_byte_ranges(self.metadata, byte_ranges)

    def set_chunk(self, byte_ranges: Ranges, names: set[str], allocation_size: int | None = None) -> None:
        """Only these tensors are wanted, and memory only for them."""
        raise UnsupportedError(f"{type(self).__name__} reads whole files: it has no set_chunk")

    @classmethod
    def chunk_transient_multiplier(cls, paths: list[str]) -> int:
        """How often a chunk's bytes are on the device while it is read."""
        raise UnsupportedError(f"{cls.__name__} does not say how much memory a chunk needs")

    @classmethod
    def chunk_device_overhead(cls, paths: list[str]) -> int:
        """Bytes on the device that a chunk of any size needs beside itself."""
        return 0

    @classmethod
    def fixed_device_overhead(cls, paths: list[str]) -> int:
        """Bytes on the device that are needed whatever is read."""
        raise UnsupportedError(f"{cls.__name__} does not say how much memory it needs for itself")

    @abstractmethod
    def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> gds_device_buffer:
        """Begins to read, and returns the memory that it reads to."""

    @abstractmethod
    def wait_io(
        self,
        gbuf: gds_device_buffer,
        dtype: DType = DType.AUTO,
        noalign: bool = False,
        owner: SharedDeviceAllocation | None = None,
    ) -> dict[str, TensorBase]:
        """Waits for the bytes, and returns the tensors; they keep `owner`."""


class DummyDeviceBuffer(gds_device_buffer):
    """No memory: of a copier whose tensors have their own."""

    def __init__(self) -> None:
        super().__init__(0, 0, False)
