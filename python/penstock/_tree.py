"""Torch checkpoints as the trees that they are. The engine reads the pickle as data; nothing in it is executed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _core
from ._torch import DTYPES
from .errors import FormatError, UnsupportedError

Place = Callable[[torch.UntypedStorage, str], Any]


def load_tree(
    checkpoint: _core.TorchCheckpoint,
    options: _core.LoadOptions,
    callback: Callable[[int, int], Any] | None,
    place: Place | None = None,
) -> tuple[Any, dict[str, Any]]:
    """What was saved, and the engine's counters.

    Tensors over one storage share its memory, as they did when they were saved. `place` is given each storage and where it
    was, and returns what the tensors are to be made of.
    """
    memories, rows, counters = checkpoint.open_storages().load(None, options, callback)
    memory_of = {row[0]: row for row in rows}
    storages = []
    for key, location, _, _ in checkpoint.storages():
        _, _, _, memory, offset, nbytes = memory_of[key]
        storage = _storage(memories, memory, offset, nbytes)
        storages.append(storage if place is None else place(storage, location))
    tensors = [_tensor(storages, row) for row in checkpoint.tensors()]
    typed = [_typed(storage, row) for storage, row in zip(storages, checkpoint.storages(), strict=True)]
    return checkpoint.build(tensors, typed, _MAKERS), counters


def _storage(memories: Sequence[Any], memory: int, offset: int, nbytes: int) -> torch.UntypedStorage:
    if nbytes == 0:
        return torch.UntypedStorage(0)
    return torch.frombuffer(memories[memory], dtype=torch.uint8, count=nbytes, offset=offset).untyped_storage()


def _dtype(name: str) -> torch.dtype:
    dtype = DTYPES.get(name)
    if dtype is None:
        raise UnsupportedError(f"this version of torch has no {name}")
    return dtype


def _tensor(
    storages: list[Any], row: tuple[int, str, int, tuple[int, ...], tuple[int, ...], bool, bool]
) -> torch.Tensor:
    storage, dtype_name, offset, shape, strides, requires_grad, is_parameter = row
    source = storages[storage]
    dtype = _dtype(dtype_name)
    tensor = torch.empty(0, dtype=dtype, device=source.device)
    tensor.set_(source, offset // dtype.itemsize, shape, strides)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


def _typed(storage: torch.UntypedStorage, row: tuple[str, str, str, int]) -> Any:
    """A storage that was saved by itself."""
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=_dtype(row[2]), _internal=True)


def _set_attributes(target: Any, state: Any) -> None:
    """What Python's unpickler does with a state that is a dict."""
    if isinstance(state, tuple) and len(state) == 2 and state[1] is None:
        state = state[0]
    if state is None:
        return
    if not isinstance(state, dict):
        raise FormatError("data.pkl: the state of an object is not a dict")
    target.__dict__.update(state)


def _numpy_scalar(dtype: str, data: bytes) -> Any:
    import numpy as np

    kind = np.dtype(dtype)
    if kind.hasobject or kind.itemsize != len(data):
        raise FormatError(f"data.pkl: {len(data)} bytes are no NumPy {dtype}")
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
