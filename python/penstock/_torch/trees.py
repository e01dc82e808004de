"""Torch checkpoints as the trees that they are. The engine reads the pickle as data; nothing in it is executed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _core
from ..errors import FormatError, UnsupportedError, UnsupportedFormatError
from .tensors import DTYPES, GarbageCollectionPaused, view

Place = Callable[[torch.UntypedStorage, str], Any]

_UNTYPED: Any = torch.UntypedStorage  # whose methods have no types

# storage, dtype, offset, shape, strides, requires_grad, is a parameter, is all of its storage
_Row = tuple[int, str, int, tuple[int, ...], tuple[int, ...], bool, bool, bool]


def load_tree(
    checkpoint: _core.TorchCheckpoint,
    options: _core.LoadOptions,
    callback: Callable[[int, int], Any] | None,
    place: Place | None = None,
) -> tuple[Any, dict[str, Any]]:
    """What was saved, and the engine's counters.

    Tensors over one storage share its memory, as they did when they were saved. `place` is given each storage and where
    it was, and returns what the tensors are to be made of.
    """

    def make_storages(memories: Sequence[Any], rows: Sequence[Any]) -> _Storages:
        return _Storages(checkpoint, memories, rows, place)

    def build(memories: Sequence[Any], rows: Sequence[Any]) -> Any:
        return _build(checkpoint, make_storages(memories, rows))

    storages = checkpoint.open_storages()
    if place is None:
        return storages.load(None, options, callback, build)
    # What moves bytes elsewhere has to wait for them.
    loaded, counters = storages.load(None, options, callback, make_storages)
    return _build(checkpoint, loaded), counters


def load_tree_without_data(checkpoint: _core.TorchCheckpoint) -> Any:
    """What was saved, with tensors on the meta device: no storage is read."""
    return _build(checkpoint, _EmptyStorages(checkpoint))


def _build(checkpoint: _core.TorchCheckpoint, storages: _Storages) -> Any:
    with GarbageCollectionPaused():
        tensors = [storages.tensor(row) for row in checkpoint.tensors()]
        return checkpoint.build(tensors, {**_MAKERS, "storage": storages.typed})


class _Storages:
    """The storages of a load, each made when something needs it."""

    def __init__(
        self, checkpoint: _core.TorchCheckpoint, memories: Sequence[Any], rows: Sequence[Any], place: Place | None
    ) -> None:
        rows_by_key = {row[0]: row for row in rows}
        self._memories = memories
        self._infos = checkpoint.storages()
        self._rows = [rows_by_key[info[0]] for info in self._infos]
        self._place = place
        self._made: list[Any] = [None] * len(self._infos)

    def storage(self, number: int) -> Any:
        """The storage, on the device it belongs to."""
        made = self._made[number]
        if made is None:
            made = self._make(number)
            if self._place is not None:
                made = self._place(made, self._infos[number][1])
            self._made[number] = made
        return made

    def tensor(self, row: _Row) -> torch.Tensor:
        """A tensor over its storage. Most have one of their own, which comes with them."""
        number, dtype_name, offset, shape, strides, requires_grad, is_parameter, alone = row
        dtype = _dtype(dtype_name)
        if alone and self._place is None and self._rows[number][5] > 0:
            _, _, _, memory, start, nbytes = self._rows[number]
            tensor = view(self._memories[memory], dtype_name, shape, start, nbytes)
        else:
            source = self.storage(number)
            tensor = torch.empty(0, dtype=dtype, device=source.device)
            tensor.set_(source, offset // dtype.itemsize, shape, strides)
        if is_parameter:
            return torch.nn.Parameter(tensor, requires_grad=requires_grad)
        return tensor.requires_grad_() if requires_grad else tensor

    def typed(self, number: int) -> Any:
        """A storage that was saved by itself."""
        dtype = _dtype(self._infos[number][2])
        typed: Any = torch.storage.TypedStorage
        return typed(wrap_storage=self.storage(number), dtype=dtype, _internal=True)

    def _make(self, number: int) -> Any:
        _, _, _, memory, offset, nbytes = self._rows[number]
        return _storage(self._memories, memory, offset, nbytes)


class _EmptyStorages(_Storages):
    """Storages on the meta device, which know where in the file their bytes are."""

    def __init__(self, checkpoint: _core.TorchCheckpoint) -> None:
        super().__init__(checkpoint, [], checkpoint.open_storages().infos(), lambda storage, _: storage)

    def _make(self, number: int) -> Any:
        _, _, _, _, offset, nbytes = self._rows[number]
        storage = _UNTYPED(nbytes, device="meta")
        storage._checkpoint_offset = offset
        return storage


def _storage(memories: Sequence[Any], memory: int, offset: int, nbytes: int) -> Any:
    if nbytes == 0:
        return _UNTYPED(0)
    return torch.frombuffer(memories[memory], dtype=torch.uint8, count=nbytes, offset=offset).untyped_storage()


def _dtype(name: str) -> torch.dtype:
    dtype = DTYPES.get(name)
    if dtype is None:
        raise UnsupportedError(f"this version of torch has no {name}")
    return dtype


def _set_attributes(target: Any, state: Any, place: str = "data.pkl") -> None:
    """What Python's unpickler does with a state that is a dict. `place` is for the message."""
    if isinstance(state, tuple) and len(state) == 2 and state[1] is None:
        state = state[0]
    if state is None:
        return
    if not isinstance(state, dict):
        raise UnsupportedFormatError(f"{place}: an object whose state is not a dict")
    target.__dict__.update(state)


def _numpy_scalar(dtype: str, data: bytes, place: str = "data.pkl") -> Any:
    import numpy as np

    kind = np.dtype(dtype)
    # The name says all of these; it does not say the unit of a time or the parts of a record.
    if kind.kind not in "biufcSU":
        raise UnsupportedFormatError(f"{place}: a NumPy {dtype} is more than its bytes")
    if kind.itemsize != len(data):
        raise FormatError(f"{place}: {len(data)} bytes are no NumPy {dtype}")
    return np.frombuffer(data, kind)[0]


def _device(arguments: list[Any]) -> torch.device:
    return torch.device(*arguments)


_MAKERS: dict[str, Callable[..., Any]] = {
    "big_integer": lambda data: int.from_bytes(data, "little", signed=True),
    "complex": complex,
    "bytearray": bytearray,
    "ordered_dict": OrderedDict,
    "set": set,
    "frozenset": frozenset,
    "size": torch.Size,
    "device": _device,
    "dtype": lambda name: getattr(torch, name),
    "numpy_scalar": _numpy_scalar,
    "set_attributes": _set_attributes,
}
