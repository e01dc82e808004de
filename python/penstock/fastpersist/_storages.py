"""Storages as the legacy format has them: a count of elements, and the bytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import torch

from .._torch.devices import copied_to_host
from .._torch.tensors import is_reachable, settle
from ..errors import ArgumentError, UnsupportedError

COUNT_BYTES = 8


class StorageParts:
    """The memory of storages, each with its number of elements in front when `save_size` asks for it.

    Keeps the memory alive. It may be that of a device, whose queued work has passed.
    """

    def __init__(self, storages: Iterable[Any], save_size: bool) -> None:
        pairs = [_storage_and_dtype(entry) for entry in storages]
        self._storages = [_reachable(storage) for storage, _ in pairs]
        self._counts = array("q", [storage.nbytes() // dtype.itemsize for storage, dtype in pairs])
        self._save_size = save_size
        self.storages = len(pairs)
        self.nbytes = sum(storage.nbytes() for storage in self._storages)
        if save_size:
            self.nbytes += COUNT_BYTES * len(pairs)

    def __len__(self) -> int:
        """How many pieces they are."""
        return self.storages * (2 if self._save_size else 1)

    def pieces(self) -> list[tuple[int, int]]:
        """Address and size of each piece, in order."""
        result = []
        counts, _ = self._counts.buffer_info()
        for i, storage in enumerate(self._storages):
            if self._save_size:
                result.append((counts + i * COUNT_BYTES, COUNT_BYTES))
            result.append((storage.data_ptr(), storage.nbytes()))
        return result

    def views(self) -> Iterable[memoryview]:
        """The same as buffers of the host, one after the other."""
        counts = memoryview(self._counts).cast("B")
        for i, storage in enumerate(self._storages):
            if self._save_size:
                yield counts[i * COUNT_BYTES : (i + 1) * COUNT_BYTES]
            if storage.nbytes() > 0:
                yield bytes_of(_on_cpu(storage)).numpy().data


def _storage_and_dtype(entry: Any) -> tuple[torch.UntypedStorage, torch.dtype]:
    if isinstance(entry, torch.storage.TypedStorage):
        return entry._untyped_storage, entry.dtype
    if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], torch.dtype):
        storage, dtype = entry
        if isinstance(storage, torch.storage.TypedStorage):
            storage = storage._untyped_storage
        if isinstance(storage, torch.UntypedStorage):
            return storage, dtype
    raise ArgumentError(f"expected (UntypedStorage, dtype), not {type(entry).__name__}")


def _reachable(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """The storage, or a copy where the engine does not reach its memory."""
    if storage.device.type == "meta":
        raise UnsupportedError("a storage on the meta device has no data")
    if not is_reachable(bytes_of(storage)):
        return _on_cpu(storage)
    settle(storage.device)
    return storage


def _on_cpu(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    if storage.device.type == "cpu":
        return storage
    memory = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cpu")
    copied_to_host(memory, bytes_of(storage))
    return memory.untyped_storage()


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """A storage as a tensor of bytes, over the same memory."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
