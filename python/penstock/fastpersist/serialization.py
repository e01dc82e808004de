"""save and load with the signatures of torch.save and torch.load.

What the engine can do itself (a path, and data rather than a program) it does: storages move at the drive's rate with the
GIL free, and no pickle is executed. Everything else is handed to torch, with the same result.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import torch

from .. import _core
from .._load import title
from .._options import Stats, load_options, path_text
from .._progress import reporting
from .._torch_files import make_tree_writer
from .._tree import load_tree
from ..errors import FormatError, UnsupportedError

DEFAULT_PROTOCOL = 2
_CLASSIC_ALIGNMENT = 64

__all__ = ["DEFAULT_PROTOCOL", "load", "save"]


def save(
    obj: Any,
    f: Any,
    pickle_module: Any = pickle,
    pickle_protocol: int = DEFAULT_PROTOCOL,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
    *,
    durable: bool = True,
    classic: bool = False,
    stats: dict[str, Any] | None = None,
) -> None:
    """Saves any object that pickle takes, as torch.save does, in a file that torch.load reads.

    To a path the file appears whole and durable, or not at all. durable: wait until the drive has it. classic: place the
    records where torch.save would, so that the file is byte for byte its own; without, large tensors start on multiples of
    4096, as torch.save does with ``storage_alignment=4096``. stats: filled with what was done.
    """
    if not _is_path(f) or _disable_byteorder_record or _wants_torch(obj):
        _save_by_torch(
            obj, f, pickle_module, pickle_protocol, _use_new_zipfile_serialization, _disable_byteorder_record
        )
        return
    arguments: dict[str, Any] = {
        "format": "torch" if _use_new_zipfile_serialization else "torch-legacy",
        "durable": durable,
    }
    if _use_new_zipfile_serialization:
        alignment = _configured_alignment()
        arguments["record_alignment"] = alignment if classic or alignment != _CLASSIC_ALIGNMENT else 0
        arguments["record_checksums"] = torch.serialization.get_crc32_options()
    writer, owners = make_tree_writer(
        obj, f, arguments, None, pickle_module=pickle_module, protocol=pickle_protocol, whole_modules=True
    )
    counters = writer.commit()
    del owners
    if stats is not None:
        stats.update(Stats(counters))


def load(
    f: Any,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    stats: dict[str, Any] | None = None,
    **pickle_load_args: Any,
) -> Any:
    """Loads what torch.save or `save` saved, as torch.load does with these arguments.

    With weights_only=False a pickle that is more than data is handed to torch, which executes it.
    """
    if _is_path(f) and pickle_module is None and not pickle_load_args:
        try:
            return _load(f, map_location, bool(mmap), stats)
        except (UnsupportedError, FormatError):
            # torch has the last word: it may know a class that was allowed, or explain what is wrong in its own way.
            return torch.load(f, map_location, weights_only=weights_only is not False, mmap=mmap)
    only = weights_only if weights_only is not None else pickle_module is None
    return torch.load(f, map_location, pickle_module, weights_only=only, mmap=mmap, **pickle_load_args)


def _load(path: Any, map_location: Any, mapped: bool, stats: dict[str, Any] | None) -> Any:
    checkpoint = _core.TorchCheckpoint(path_text(path))
    options = load_options(cache="mmap" if mapped else "auto")
    with reporting(None, f"loading {title(path)}") as callback:
        tree, counters = load_tree(checkpoint, options, callback, _placing(map_location))
    if stats is not None:
        stats.update(Stats(counters))
    return tree


def _placing(map_location: Any) -> Callable[[torch.UntypedStorage, str], Any]:
    """What to do with a storage that was at a location: torch's rules for map_location."""
    restore = torch.serialization.default_restore_location
    if map_location is None:
        return lambda storage, location: storage if location == "cpu" else restore(storage, location)
    if isinstance(map_location, dict):
        return lambda storage, location: restore(storage, map_location.get(location, location))
    if isinstance(map_location, (str, torch.device)):
        target = str(map_location)
        return lambda storage, _: storage if target == "cpu" else restore(storage, target)

    def call(storage: torch.UntypedStorage, location: str) -> Any:
        placed = map_location(storage, location)
        return restore(storage, location) if placed is None else placed

    return call


def _is_path(f: Any) -> bool:
    return isinstance(f, (str, os.PathLike))


def _wants_torch(obj: Any) -> bool:
    """Modes that only torch knows: saves without data, and tensors that have none."""
    from torch._subclasses.fake_tensor import FakeTensor

    skipping = getattr(torch.serialization, "_serialization_tls", None)
    return bool(getattr(skipping, "skip_data", False)) or isinstance(obj, FakeTensor)


def _configured_alignment() -> int:
    try:
        from torch.utils.serialization import config
    except ImportError:
        return _CLASSIC_ALIGNMENT
    return int(getattr(config.save, "storage_alignment", _CLASSIC_ALIGNMENT))


def _save_by_torch(
    obj: Any, f: Any, pickle_module: Any, protocol: int, zipped: bool, disable_byteorder_record: bool
) -> None:
    torch.save(
        obj,
        f,
        pickle_module=pickle_module,
        pickle_protocol=protocol,
        _use_new_zipfile_serialization=zipped,
        _disable_byteorder_record=disable_byteorder_record,
    )
