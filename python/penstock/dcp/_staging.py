"""Copies of state dicts on the host, for saves that go on while training does."""

from __future__ import annotations

import copy
import ctypes
import os
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.distributed.checkpoint.staging import AsyncStager, BlockingAsyncStager
from torch.distributed.tensor import DTensor

from .._collector import GarbageCollectionPaused
from .._core import Memory, MemoryPool
from .._fork import new_lock
from .._torch.tensors import is_plain, pointer

_ALIGNMENT = 64
_PIECE = 16 << 20  # what one thread copies at a time
_MOST_THREADS = 4
_DIRECTLY = 1 << 20  # less is copied by the caller
_memmove = ctypes.CDLL(None).memmove  # which, unlike ctypes.memmove, lets other threads run
_memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memmove.restype = ctypes.c_void_p


class Stager(AsyncStager):
    """Copies state dicts for ``dcp.async_save``, into memory that it keeps for the next one.

    Memory that was written to before is there: the second save and those behind it hold their caller for no longer than
    the bytes take to be copied. `reserve` takes it before the first one. The memory is taken again when nothing of a
    copy is left, so whoever stages the next step while the last one is being saved has two copies.

    All `StorageWriter` of a process that are given none share one.
    """

    _synchronize_after_execute = False

    def __init__(self) -> None:
        self._pool = MemoryPool(max_kept_bytes=0)
        self._free: list[Memory] = []
        self._lock = new_lock()

    def stage(self, state_dict: Any, **_options: Any) -> Any:
        """A copy of the state dict whose tensors are on the host; what else it holds is copied as `copy.deepcopy` does.

        DTensors stay such, over copies of what this rank has of them.
        """
        with torch.no_grad(), GarbageCollectionPaused():
            copier = _Copier()
            planned = copier.plan(state_dict)
            lease = self._lease(copier.nbytes)
            copier.copy(lease)
            return copier.build(planned)

    def reserve(self, state_dict: Any) -> None:
        """Takes the memory for copies of such a state dict, so that already the first save finds it there."""
        copier = _Copier()
        copier.plan(state_dict)
        lease = self._lease(copier.nbytes)
        if lease is not None:
            ctypes.memset(lease, 0, len(lease))

    def synchronize_staging(self) -> None:
        """Nothing is left to wait for when `stage` has returned."""

    def close(self) -> None:
        """Gives back the memory that no copy is using."""
        with self._lock:
            self._free.clear()

    def _lease(self, nbytes: int) -> Any:
        """Memory as a buffer that comes back when nothing refers to it any more."""
        if nbytes == 0:
            return None
        with self._lock:
            fitting = [memory for memory in self._free if len(memory) >= nbytes]
            memory = min(fitting, key=len, default=None)
            self._free.clear()  # of the others: one is kept
        if memory is None:
            memory = self._pool.take(nbytes)
        lease = (ctypes.c_ubyte * nbytes).from_address(memory.address)
        weakref.finalize(lease, _give_back, weakref.ref(self), memory).atexit = False
        return lease

    def _take_back(self, memory: Memory) -> None:
        with self._lock:
            if all(len(memory) > len(each) for each in self._free):
                self._free[:] = [memory]

    def __reduce__(self) -> tuple[Any, ...]:
        return Stager, ()  # in another process it has no memory yet


def _give_back(stager: weakref.ref[Stager], memory: Memory) -> None:
    alive = stager()
    if alive is not None:
        alive._take_back(memory)


_shared: Stager | None = None
_shared_lock = new_lock()


def shared_stager() -> Stager:
    """The one of this process."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Stager()
        return _shared


class _Copied:
    """A tensor that is going to be copied, and then its copy. Those over the same elements are one."""

    def __init__(self, tensor: torch.Tensor, offset: int) -> None:
        self.tensor = tensor
        self.offset = offset
        self.copy = tensor  # until it is one


class _Wrapped:
    """A DTensor over what is copied."""

    def __init__(self, tensor: DTensor, local: _Copied) -> None:
        self.tensor = tensor
        self.local = local


class _Copier:
    """One copy of a state dict: planned, so that all its memory is taken at once, then done, then put together."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._copied: dict[Any, _Copied] = {}

    def plan(self, value: Any) -> Any:
        """The same structure with _Copied in the place of tensors."""
        if isinstance(value, DTensor):
            return _Wrapped(value, self._add(value.to_local()))
        if isinstance(value, torch.Tensor):
            return self._add(value) if type(value) in _PLAIN and is_plain(value) else _staged_by_torch(value)
        if isinstance(value, dict):
            planned = {key: self.plan(each) for key, each in value.items()}
            return planned if type(value) is dict else _like(value, planned)
        if type(value) in (list, tuple):
            return type(value)(self.plan(each) for each in value)
        return copy.deepcopy(value)

    def copy(self, lease: Any) -> None:
        """Copies all tensors, the large ones by several threads."""
        directly = []
        for each in self._copied.values():
            tensor = each.tensor
            each.copy = _tensor_over(lease, tensor, each.offset)
            if tensor.device.type == "cpu" and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
                directly.append((each.copy.data_ptr(), pointer(tensor), tensor.nbytes))
            else:
                each.copy.copy_(tensor)
        _copy_bytes(directly)

    def build(self, planned: Any) -> Any:
        """The structure with the copies."""
        if isinstance(planned, _Copied):
            return planned.copy
        if isinstance(planned, _Wrapped):
            return _distributed(planned.tensor, planned.local.copy)
        if isinstance(planned, dict):
            for key, each in planned.items():
                planned[key] = self.build(each)
            return planned
        if type(planned) in (list, tuple):
            return type(planned)(self.build(each) for each in planned)
        return planned

    def _add(self, tensor: torch.Tensor) -> _Copied:
        tensor = tensor.detach()
        key = (tensor.device, pointer(tensor), tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj())
        known = self._copied.get(key) if tensor.numel() > 0 else None
        if known is None:
            known = _Copied(tensor, self.nbytes)
            self._copied[key if tensor.numel() > 0 else id(known)] = known
            self.nbytes += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        return known


_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _like(value: dict[Any, Any], planned: dict[Any, Any]) -> Any:
    """A dict of the same class, such as an OrderedDict, with other values."""
    made = copy.copy(value)
    made.update(planned)
    return made


def _tensor_over(lease: Any, tensor: torch.Tensor, offset: int) -> torch.Tensor:
    if tensor.numel() == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    made = torch.frombuffer(lease, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
    return made.resize_(tensor.shape)  # a storage of its own, and nobody's view


def _distributed(old: DTensor, local: torch.Tensor) -> DTensor:
    """Not by from_local(), which would move what is on the host to the device of the mesh."""
    constructor: Any = DTensor
    made: DTensor = constructor(local, old._spec, requires_grad=False)
    return made


def _staged_by_torch(value: torch.Tensor) -> Any:
    """Sparse and quantised tensors, those that torch shards, and classes of others."""
    if type(value) in _PLAIN:
        return value.detach().to("cpu", copy=True)
    return BlockingAsyncStager().stage({"value": value})["value"]


def _copy_bytes(moves: list[tuple[int, int, int]]) -> None:
    large: list[tuple[int, int, int]] = []
    for to, source, nbytes in moves:
        if nbytes < _DIRECTLY:
            _memmove(to, source, nbytes)
        else:
            large.extend(_pieces(to, source, nbytes))
    threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS, len(large))
    if threads < 2:
        for piece in large:
            _memmove(*piece)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda piece: _memmove(*piece), large):
            pass


def _pieces(to: int, source: int, nbytes: int) -> Iterator[tuple[int, int, int]]:
    for begin in range(0, nbytes, _PIECE):
        yield to + begin, source + begin, min(_PIECE, nbytes - begin)
