"""Any object as a pickle and the storages it refers to: what torch.save does before it writes."""

from __future__ import annotations

import inspect
import io
import pickle
import warnings
from typing import Any, NamedTuple

import torch

from .errors import ArgumentError, UnsupportedError


class Pickled(NamedTuple):
    """The pickle of an object, and its storages in the order it met them."""

    data: bytes
    storages: list[PickledStorage]


class PickledStorage(NamedTuple):
    """One storage: the key by which the pickle knows it, its memory, and the width of its elements in bytes."""

    key: str
    storage: Any
    width: int


def pickle_object(obj: Any, *, legacy: bool, pickle_module: Any = pickle, protocol: int = 2) -> Pickled:
    """Pickles `obj`. Storages are left out and collected, each once, however many tensors are views of it.

    Raises UnsupportedError for a storage that has no data.
    """

    class Pickler(pickle_module.Pickler):  # type: ignore[misc]
        # A class lives until garbage is collected: the storages are not its own, so that they don't.
        identify: Any

        def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
            return self.identify(value)  # type: ignore[no-any-return]

    collector = _LegacyCollector() if legacy else _Collector()
    buffer = io.BytesIO()
    pickler = Pickler(buffer, protocol=protocol)
    pickler.identify = collector.identify
    pickler.dump(obj)
    return Pickled(buffer.getvalue(), list(collector.storages.values()))


class _Collector:
    """The storages that a pickler meets, and how the zip format refers to them."""

    def __init__(self) -> None:
        self.storages: dict[int, PickledStorage] = {}
        self._dtypes: dict[int, torch.dtype] = {}

    def identify(self, value: Any) -> tuple[Any, ...] | None:
        """What the pickle has in place of a storage; None for anything else."""
        if not (_is_typed(value) or torch.is_storage(value)):
            return None
        storage, dtype, kind, count = _describe(value)
        if storage.device.type == "meta":
            raise UnsupportedError("a storage on the meta device has no data")
        self._check_dtype(storage, dtype)
        known = self.storages.get(storage._cdata)
        if known is None:
            known = PickledStorage(self._new_key(storage), storage, dtype.itemsize)
            self.storages[storage._cdata] = known
        return self._reference(known, kind, torch.serialization.location_tag(storage), count)

    def _check_dtype(self, storage: torch.UntypedStorage, dtype: torch.dtype) -> None:
        address = storage.data_ptr()
        if address != 0 and self._dtypes.setdefault(address, dtype) != dtype:
            raise ArgumentError("tensors of different types over the same memory can't be saved in one file")

    def _new_key(self, storage: torch.UntypedStorage) -> str:
        return str(len(self.storages))

    def _reference(self, known: PickledStorage, kind: Any, location: str, count: int) -> tuple[Any, ...]:
        return ("storage", kind, known.key, location, count)


class _LegacyCollector(_Collector):
    """The same for the legacy format, which also keeps the source of each module's class, to compare it when it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self._classes: set[type] = set()

    def identify(self, value: Any) -> tuple[Any, ...] | None:
        if isinstance(value, type) and issubclass(value, torch.nn.Module):
            if value in self._classes:
                return None
            self._classes.add(value)
            return ("module", value, *_source_of(value))
        return super().identify(value)

    def _new_key(self, storage: torch.UntypedStorage) -> str:
        return str(storage._cdata)

    def _reference(self, known: PickledStorage, kind: Any, location: str, count: int) -> tuple[Any, ...]:
        # A new string each time, as torch has it: the pickler would note that it is the same one.
        return ("storage", kind, str(known.storage._cdata), location, count, None)


def _describe(value: Any) -> tuple[Any, torch.dtype, Any, int]:
    """A storage's memory, element type, class in the pickle, and length in elements."""
    if _is_typed(value):
        kind = getattr(torch, value._pickle_storage_type())
        return value._untyped_storage, value.dtype, kind, value._size()
    return value, torch.uint8, torch.UntypedStorage, value.nbytes()


def _is_typed(value: Any) -> bool:
    return isinstance(value, torch.storage.TypedStorage)


def _source_of(module_class: type) -> tuple[str | None, str | None]:
    """The file and text of a class, where they can be had."""
    try:
        return inspect.getsourcefile(module_class), "".join(inspect.getsourcelines(module_class)[0])
    except (OSError, TypeError):
        warnings.warn(f"the source of {module_class.__name__} can't be found and is not saved", stacklevel=2)
        return None, None
