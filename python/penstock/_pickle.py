"""Any object as a pickle and the storages it refers to: what torch.save does before it writes."""

from __future__ import annotations

import io
import pickle
from typing import Any, NamedTuple

import torch

from ._dtypes import dtype_name
from .errors import ArgumentError


class Pickled(NamedTuple):
    """The pickle of an object, and its storages in the order it met them."""

    data: bytes
    storages: list[PickledStorage]


class PickledStorage(NamedTuple):
    """One storage: the key by which the pickle knows it, its memory, and what it counts in."""

    key: str
    storage: torch.UntypedStorage
    dtype: str


def pickle_object(obj: Any, *, legacy: bool, pickle_module: Any = pickle, protocol: int = 2) -> Pickled:
    """Pickles `obj`. Storages are left out and collected, each once, however many tensors are views of it."""
    storages: dict[int, PickledStorage] = {}
    dtypes: dict[int, torch.dtype] = {}

    def persistent_id(value: Any) -> tuple[Any, ...] | None:
        if not (isinstance(value, torch.storage.TypedStorage) or torch.is_storage(value)):
            return None
        storage, dtype, kind, count = _describe(value)
        address = storage.data_ptr()
        if address != 0 and dtypes.setdefault(address, dtype) != dtype and not legacy:
            raise ArgumentError("tensors of different types over the same memory can't be saved in one file")
        identity = storage._cdata
        known = storages.get(identity)
        if known is None:
            key = str(identity) if legacy else str(len(storages))
            known = storages[identity] = PickledStorage(key, storage, dtype_name(dtype))
        location = torch.serialization.location_tag(storage)
        if legacy:
            # A new string each time, as torch has it: the pickler would note that it is the same one.
            return ("storage", kind, str(identity), location, count, None)
        return ("storage", kind, known.key, location, count)

    class Pickler(pickle_module.Pickler):  # type: ignore[misc]
        def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
            return persistent_id(value)

    buffer = io.BytesIO()
    Pickler(buffer, protocol=protocol).dump(obj)
    return Pickled(buffer.getvalue(), list(storages.values()))


def _describe(value: Any) -> tuple[torch.UntypedStorage, torch.dtype, Any, int]:
    """A storage's memory, element type, class in the pickle, and length in elements."""
    if isinstance(value, torch.storage.TypedStorage):
        kind = getattr(torch, value._pickle_storage_type())
        return value._untyped_storage, value.dtype, kind, value._size()
    return value, torch.uint8, torch.UntypedStorage, value.nbytes()
