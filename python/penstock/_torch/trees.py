"""Torch checkpoints as the trees that they are. The engine reads the pickle as data; nothing in it is executed."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from .. import _core
from .._collector import GarbageCollectionPaused
from .._frameworks import Landing
from .._opaque import Opaque
from ..errors import FormatError, UnsupportedError, UnsupportedFormatError
from .tensors import DTYPES, elements, view

Place = Callable[[torch.UntypedStorage, str], Any]

_UNTYPED: Any = torch.UntypedStorage  # whose methods have no types
_set_metadata: Any = torch._utils.set_tensor_metadata  # the same

# storage, dtype, offset, shape, strides, requires_grad, is a parameter, is all of its storage, conjugated, negated
_Row = tuple[int, str, int, tuple[int, ...], tuple[int, ...], bool, bool, bool, bool, bool]


def load_tree(
    checkpoint: _core.TorchCheckpoint,
    options: _core.LoadOptions,
    callback: Callable[[int, int], Any] | None,
    landing: Landing | None = None,
    place: Place | None = None,
) -> tuple[Any, dict[str, Any]]:
    """What was saved, and the engine's counters.

    Tensors over one storage share its memory, as they did when they were saved. `place` is given each storage and where
    it was, and returns what the tensors are to be made of.
    """
    allocator = None if landing is None else landing.allocator
    device = "cpu" if landing is None or allocator is None else landing.device
    if landing is not None and landing.passes_host:
        place = partial(_move, landing.device)

    def make_storages(memories: Sequence[Any], rows: Sequence[Any]) -> _Storages:
        return _Storages(checkpoint, memories, rows, device, place)

    def build(memories: Sequence[Any], rows: Sequence[Any]) -> Any:
        return _build(checkpoint, make_storages(memories, rows))

    storages = checkpoint.open_storages()
    if place is None and not checkpoint.needs_data():
        return storages.load(None, options, callback, build, allocator)
    # What moves or looks at bytes has to wait for them.
    loaded, counters = storages.load(None, options, callback, make_storages, allocator)
    return _build(checkpoint, loaded), counters


def _move(device: torch.device, storage: Any, _location: str) -> Any:
    if device.type == "meta":  # where torch moves no storage
        return _UNTYPED(storage.nbytes(), device=device)
    return storage.to(device=device)


def load_tree_without_data(checkpoint: _core.TorchCheckpoint) -> Any:
    """What was saved, with tensors on the meta device: no storage is read."""
    if checkpoint.needs_data():
        raise UnsupportedError("tensors that are made of others, or compressed, can't be made without being read")
    return _build(checkpoint, _EmptyStorages(checkpoint))


def _build(checkpoint: _core.TorchCheckpoint, storages: _Storages) -> Any:
    with GarbageCollectionPaused():
        tensors = [storages.tensor(row) for row in checkpoint.tensors()]
        return checkpoint.build(tensors, {**_MAKERS, "storage": storages.typed})


class _Storages:
    """The storages of a load, each made when something needs it."""

    def __init__(
        self,
        checkpoint: _core.TorchCheckpoint,
        memories: Sequence[Any],
        rows: Sequence[Any],
        device: torch.device | str,
        place: Place | None,
    ) -> None:
        rows_by_key = {row[0]: row for row in rows}
        self._memories = memories
        self._device = device
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
        number, dtype_name, offset, shape, strides, requires_grad, is_parameter, alone, conjugated, negated = row
        dtype = _dtype(dtype_name)
        if alone and self._place is None and self._rows[number][5] > 0:
            _, _, _, memory, start, nbytes = self._rows[number]
            tensor = view(self._memories[memory], dtype_name, shape, start, nbytes)
        else:
            source = self.storage(number)
            tensor = torch.empty(0, dtype=dtype, device=source.device)
            tensor.set_(source, offset // dtype.itemsize, shape, strides)
        if conjugated or negated:
            marks = {name: True for name, is_set in (("conj", conjugated), ("neg", negated)) if is_set}
            _set_metadata(tensor, marks)
        if is_parameter:
            return torch.nn.Parameter(tensor, requires_grad=requires_grad)
        return tensor.requires_grad_() if requires_grad else tensor

    def typed(self, number: int, dtype: str, offset: int, count: int) -> Any:
        """A storage that was saved by itself, or a part of one: elements of a type from a byte on."""
        kind = getattr(torch, dtype)
        storage = self.storage(number)
        nbytes = count * kind.itemsize
        if offset != 0 or nbytes != storage.nbytes():
            storage = storage[offset : offset + nbytes]
        typed: Any = torch.storage.TypedStorage
        return typed(wrap_storage=storage, dtype=kind, _internal=True)

    def _make(self, number: int) -> Any:
        _, _, _, memory, offset, nbytes = self._rows[number]
        if nbytes == 0:
            return _UNTYPED(0, device=self._device)
        return elements(self._memories[memory], torch.uint8, (nbytes,), offset, nbytes).untyped_storage()


class _EmptyStorages(_Storages):
    """Storages on the meta device, which know where in the file their bytes are."""

    def __init__(self, checkpoint: _core.TorchCheckpoint) -> None:
        super().__init__(checkpoint, [], checkpoint.open_storages().infos(), "meta", lambda storage, _: storage)

    def _make(self, number: int) -> Any:
        _, _, _, _, offset, nbytes = self._rows[number]
        storage = _UNTYPED(nbytes, device="meta")
        storage._checkpoint_offset = offset
        return storage


def _dtype(name: str) -> torch.dtype:
    dtype = DTYPES.get(name)
    if dtype is None:
        raise UnsupportedError(f"this version of torch has no {name}")
    return dtype


def _set_attributes(target: Any, state: Any, place: str = "data.pkl") -> None:
    """What Python's unpickler does with a state that is a dict. `place` is for the message."""
    if isinstance(state, tuple) and len(state) == 2 and not state[1]:
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
    return np.frombuffer(data, kind).astype(kind.newbyteorder("="))[0]


def _numpy_array(dtype: str, data: bytes, shape: tuple[int, ...], column_major: bool) -> Any:
    import numpy as np

    return np.frombuffer(data, np.dtype(dtype)).reshape(shape, order="F" if column_major else "C").copy(order="K")


def _rebuilt(function: str, arguments: list[Any]) -> Any:
    """A tensor that is more than a view of a storage. torch checks what it is made of."""
    make = _REBUILT.get(function)
    if make is None:
        raise UnsupportedFormatError(f"a tensor that torch makes by {function}")
    try:
        return make(*arguments)
    except NotImplementedError as problem:  # devices lack some of what the CPU has
        reason = str(problem).partition("\n")[0].partition(". ")[0]
        raise UnsupportedFormatError(f"a tensor that torch makes by {function} can't be made: {reason}") from problem


def _sparse(layout: Any, data: Sequence[Any]) -> Any:
    indices, *rest = data
    if layout == torch.sparse_coo:
        values, size, *coalesced = rest
        return torch.sparse_coo_tensor(
            indices, values, size, check_invariants=True, is_coalesced=coalesced[0] if coalesced else None
        )
    plain, values, size = rest
    return torch.sparse_compressed_tensor(indices, plain, values, size, layout=layout, check_invariants=True)


def _nested(buffer: Any, *parts: Any) -> Any:
    """torch reads sizes, strides and offsets by their addresses, whatever their strides are."""
    return _TORCH_UTILS._rebuild_nested_tensor(buffer, *(part.contiguous() for part in parts))


def _on_device(data: Any, dtype: Any, _device_name: str, requires_grad: bool) -> Any:
    """A tensor of a device without storages, from an array; on the CPU."""
    return torch.from_numpy(data).to(dtype=dtype).requires_grad_(requires_grad)


def _layout(name: str) -> Any:
    layout = vars(torch).get(name.removeprefix("torch."))  # getattr() would import modules of that name
    if not isinstance(layout, torch.layout):
        raise ValueError(f"{name!r} is no layout of torch's")
    return layout


_TORCH_UTILS: Any = torch._utils

_REBUILT: dict[str, Callable[..., Any]] = {
    "_rebuild_qtensor": lambda *arguments: _TORCH_UTILS._rebuild_qtensor(*arguments),
    "_rebuild_sparse_tensor": _sparse,
    "_rebuild_nested_tensor": _nested,
    "_rebuild_meta_tensor_no_storage": lambda *arguments: _TORCH_UTILS._rebuild_meta_tensor_no_storage(*arguments),
    "_rebuild_device_tensor_from_numpy": _on_device,
    "_rebuild_parameter": lambda *arguments: _TORCH_UTILS._rebuild_parameter(*arguments),
    "_rebuild_parameter_with_state": lambda *arguments: _TORCH_UTILS._rebuild_parameter_with_state(*arguments),
}


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
    "numpy_array": _numpy_array,
    "counter": Counter,
    "layout": _layout,
    "scheme": lambda name: getattr(torch, name),
    "rebuilt": _rebuilt,
    "opaque": Opaque,
    "fill_opaque": Opaque._fill,
    "set_attributes": _set_attributes,
}
