"""Any object as a pickle and the storages it refers to: what torch.save does before it writes."""

from __future__ import annotations

import inspect
import io
import pickle
import warnings
from typing import Any, NamedTuple

import torch

from ..errors import ArgumentError, UnsupportedError
from .tensors import require_memory

# How a legacy file starts.
_MAGIC = 0x1950A86A20F9469CFC6C
_VERSION = 1001
_TYPE_SIZES = {"short": 2, "int": 4, "long": 4}


class Pickled(NamedTuple):
    """The pickle of an object, and its storages in the order it met them.

    around: what a legacy file has before it and behind it, where that is not what the engine writes by itself.
    """

    data: bytes
    storages: list[PickledStorage]
    around: tuple[bytes, bytes] | None = None


class PickledStorage(NamedTuple):
    """One storage: the key by which the pickle knows it, its memory, and the width of its elements in bytes."""

    key: str
    storage: Any
    width: int


def pickle_object(obj: Any, *, legacy: bool, pickle_module: Any = pickle, protocol: int = 2) -> Pickled:
    """Pickles `obj`. Storages are left out and collected, each once, however many tensors are views of it.

    Raises UnsupportedError for a storage that has no data, for a tensor that reaches past its storage, and for a legacy
    file of the protocols before 2.
    """
    if legacy and protocol in (0, 1):
        raise UnsupportedError(f"a legacy file with pickles of protocol {protocol}")

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
    storages = list(collector.storages.values())
    plain = protocol == 2 and pickle_module is pickle
    around = _pickle_around(storages, pickle_module, protocol) if legacy and not plain else None
    return Pickled(buffer.getvalue(), storages, around)


def _pickle_around(storages: list[PickledStorage], pickle_module: Any, protocol: int) -> tuple[bytes, bytes]:
    """The pickles before the object's, and the list of keys behind it, as torch.save makes them."""
    before = [_MAGIC, _VERSION, {"protocol_version": _VERSION, "little_endian": True, "type_sizes": dict(_TYPE_SIZES)}]
    keys = sorted(each.key for each in storages)
    return b"".join(_dump(part, pickle_module, protocol) for part in before), _dump(keys, pickle_module, protocol)


def _dump(value: Any, pickle_module: Any, protocol: int) -> bytes:
    buffer = io.BytesIO()
    pickle_module.dump(value, buffer, protocol=protocol)
    return buffer.getvalue()


class _Collector:
    """The storages that a pickler meets, and how the zip format refers to them."""

    def __init__(self) -> None:
        self.storages: dict[int, PickledStorage] = {}
        self._dtypes: dict[int, torch.dtype] = {}

    def identify(self, value: Any) -> tuple[Any, ...] | None:
        """What the pickle has in place of a storage; None for anything else."""
        if isinstance(value, torch.Tensor):
            require_memory(value)  # nobody could load it
            return None
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
    """The same for the legacy format, which also keeps the source of each module's class, to compare on loading."""

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
