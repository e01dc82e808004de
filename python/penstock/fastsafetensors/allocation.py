"""Who owns the memory of loaded tensors, and how much of it there is now."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from .._fork import new_lock
from .._frameworks import PackedTensor
from ..errors import ArgumentError
from .st_types import Device

if TYPE_CHECKING:
    from .cpp import gds_device_buffer
    from .frameworks import FrameworkOpBase

_lock = new_lock()
_live: dict[int, int] = {}  # number of the allocation -> bytes
_next = 0
_tensors: dict[int, _Counted] = {}  # by its address; every step on it is one that threads can't part


def count_allocation(nbytes: int) -> int:
    """Counts memory as live, until `uncount_allocation` of the number that this gives."""
    global _next
    with _lock:
        _next += 1
        _live[_next] = nbytes
        return _next


def uncount_allocation(number: int) -> None:
    """The memory is gone. A second time is nothing."""
    with _lock:
        _live.pop(number, None)


class _Counted(weakref.ref[Any]):
    """A tensor that is counted. `weakref.finalize` took twice as long, which is much for 50,000 tensors."""

    __slots__ = ("nbytes",)
    nbytes: int


def count_tensor(tensor: Any) -> None:
    """Counts a tensor's memory as live until the tensor is gone."""
    held = tensor.data if isinstance(tensor, PackedTensor) else tensor
    counted = _Counted(held, _uncount_tensor)
    counted.nbytes = int(held.nbytes)
    _tensors[id(counted)] = counted


def _uncount_tensor(counted: weakref.ref[Any]) -> None:
    _tensors.pop(id(counted), None)


def live_allocation_count() -> int:
    """How many blocks of memory loaders and their tensors hold now."""
    with _lock:
        return len(_live) + len(_tensors)


def live_allocation_bytes() -> int:
    """How many bytes they have together."""
    with _lock:
        return sum(_live.values()) + sum(counted.nbytes for counted in list(_tensors.values()))


class SharedDeviceAllocation:
    """Memory that a buffer and the tensors over it own together: it is freed when the last of them lets go."""

    def __init__(
        self, gbuf: gds_device_buffer, framework: FrameworkOpBase[Any, Any], device: Device, owns_memory: bool = True
    ) -> None:
        self._gbuf: gds_device_buffer | None = gbuf
        self._framework = framework
        self._device = device
        self._owns_memory = owns_memory
        self._references = 1
        self._lock = new_lock()
        self._number = count_allocation(gbuf.get_length()) if owns_memory else 0

    def get_base_address(self) -> int:
        """The first byte's address."""
        gbuf = self._gbuf
        if gbuf is None:
            raise ArgumentError("the memory is freed")
        return gbuf.get_base_address()

    def acquire(self) -> SharedDeviceAllocation:
        """One more owner."""
        with self._lock:
            if self._references == 0:
                raise ArgumentError("the memory is freed")
            self._references += 1
        return self

    def release(self) -> None:
        """One owner less; the last one frees the memory, and further calls are nothing."""
        with self._lock:
            if self._references == 0:
                return
            self._references -= 1
            if self._references > 0:
                return
            gbuf, self._gbuf = self._gbuf, None
        if self._owns_memory and gbuf is not None:
            self._framework.free_tensor_memory(gbuf, self._device)
            uncount_allocation(self._number)

    @property
    def live(self) -> bool:
        """Whether the memory is there."""
        return self._gbuf is not None

    def refcount(self) -> int:
        """How many own it now."""
        with self._lock:
            return self._references

    def __repr__(self) -> str:
        return f"SharedDeviceAllocation(refcount={self._references}, live={self.live}, owns_memory={self._owns_memory})"
