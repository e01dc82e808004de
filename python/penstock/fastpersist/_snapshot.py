"""Copies of a checkpoint's storages, in memory that is kept and used again."""

from __future__ import annotations

import torch

from .._torch.devices import copied_to_host
from .._torch.pickles import Pickled
from ._storages import bytes_of

_ALIGNMENT = 4096
_CPU = torch.device("cpu")


class Copy:
    """A copied storage, as writers ask for one. Its memory is the staging's."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self.device = _CPU

    def data_ptr(self) -> int:
        return self._memory.data_ptr()

    def nbytes(self) -> int:
        return self._memory.numel()


class Staging:
    """Memory for one snapshot at a time: the next one is made where the last one was."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8, device=_CPU)

    def copy(self, pickled: Pickled) -> Pickled:
        """The same object over copies of its storages, wherever they are."""
        sizes = [_padded(each.storage.nbytes()) for each in pickled.storages]
        self._make_room(sum(sizes))
        copies = []
        begin = 0
        for each, size in zip(pickled.storages, sizes, strict=True):
            place = self._memory[begin : begin + each.storage.nbytes()]
            if len(place) > 0:
                copied_to_host(place, bytes_of(each.storage))
            copies.append(each._replace(storage=Copy(place)))
            begin += size
        return Pickled(pickled.data, copies)

    def _make_room(self, nbytes: int) -> None:
        if nbytes > len(self._memory):
            del self._memory  # never both
            self._memory = torch.empty(nbytes, dtype=torch.uint8, device=_CPU)


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
