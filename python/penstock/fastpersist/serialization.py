"""save and load with the signatures of torch.save and torch.load.

What the engine can do itself (a path, and data rather than a program) it does: storages move at the drive's rate with
the GIL free, and no pickle is executed. Everything else is handed to torch, with the same result. A file that is
damaged is refused, and torch is not asked.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch

from .. import _core
from .._frameworks import Landing
from .._options import Stats, load_options, path_text
from .._torch.devices import landing
from .._torch.files import make_tree_writer
from .._torch.trees import load_tree, load_tree_without_data
from ..errors import DamagedCheckpointError, FormatError, UnsupportedError
from ._fallback import (
    check_kind,
    check_pickle,
    load_by_torch,
    needs_torch_to_load,
    needs_torch_to_save,
    save_by_torch,
)
from ._torch_settings import map_by_default, storage_alignment, writes_checksums

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

    To a path the file appears whole and durable, or not at all. File objects, saves without data
    (``torch.serialization.skip_data``, fake tensors) and files without a byte order are torch's.

    durable: wait until the drive has it.
    classic: place the records where torch.save would, so that the file is byte for byte its own. Without, large tensors
        start on multiples of 4096, as torch.save does with ``storage_alignment=4096``.
    stats: filled with what was done.
    """
    reason = needs_torch_to_save(f, _disable_byteorder_record)
    if reason is None:
        arguments: dict[str, Any] = {"format": "torch-legacy", "durable": durable}
        if _use_new_zipfile_serialization:
            arguments.update(_zip_arguments(classic))
            arguments["format"] = "torch"
        try:
            writer, owners = make_tree_writer(
                obj, f, arguments, None, pickle_module=pickle_module, protocol=pickle_protocol, whole_modules=True
            )
        except UnsupportedError as problem:
            reason = str(problem)
    if reason is not None:
        save_by_torch(obj, f, pickle_module, pickle_protocol, _use_new_zipfile_serialization, _disable_byteorder_record)
        _fill(stats, {"path": "torch", "reason": reason})
        return
    counters = writer.commit()
    del owners  # Their memory was borrowed until here.
    _fill(stats, counters)


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

    A pickle that is more than data is handed to torch, which executes it with weights_only=False and refuses it
    otherwise (but for classes that were allowed with ``torch.serialization.add_safe_globals``).

    A damaged file is a `DamagedCheckpointError`, which is a RuntimeError, an UnpicklingError and an EOFError:
    torch.load raises one of these, depending on where the damage is.

    stats: filled with what was done.
    """
    reason = needs_torch_to_load(f, pickle_module, pickle_load_args)
    if reason is None:
        try:
            return _load(path_text(f), map_location, map_by_default() if mmap is None else mmap, stats)
        except UnsupportedError as problem:  # a sound file; one that is damaged torch must not try
            reason = str(problem)
        except FormatError as problem:
            raise DamagedCheckpointError(*problem.args) from None
        check_kind(path_text(f))
        check_pickle(path_text(f))
    tree = load_by_torch(f, map_location, pickle_module, weights_only, mmap, pickle_load_args)
    _fill(stats, {"path": "torch", "reason": reason})
    return tree


def _zip_arguments(classic: bool) -> dict[str, Any]:
    alignment = storage_alignment()
    chosen = classic or alignment != _CLASSIC_ALIGNMENT
    return {"record_alignment": alignment if chosen else 0, "record_checksums": writes_checksums()}


def _load(path: str, map_location: Any, mapped: bool, stats: dict[str, Any] | None) -> Any:
    checkpoint = _core.TorchCheckpoint(path)
    if _is_meta(map_location):
        return load_tree_without_data(checkpoint)
    if mapped and _core.detect_format(path) != "torch":
        raise UnsupportedError(f"{path}: torch maps zips only")
    options = load_options(cache="mmap" if mapped else "auto")
    locations = {location for _, location, _, _ in checkpoint.storages()}
    landing = None if mapped else _landing(map_location, locations)
    place = None if landing is not None else _placing(map_location, locations)
    tree, counters = load_tree(checkpoint, options, None, landing, place)
    _fill(stats, counters)
    return tree


def _is_meta(map_location: Any) -> bool:
    """Whether no storage is wanted at all."""
    return isinstance(map_location, (str, torch.device)) and str(map_location) == "meta"


def _landing(map_location: Any, locations: set[str]) -> Landing | None:
    """The one device that all storages go to, where the engine can fill its memory."""
    if isinstance(map_location, (str, torch.device)):
        locations = {str(map_location)}
    elif map_location is not None:
        return None
    if len(locations) != 1 or locations == {"cpu"}:
        return None
    restore: Any = torch.serialization.default_restore_location
    nothing: Any = torch.UntypedStorage
    place = restore(nothing(0), *locations).device  # by torch's rules, and with its errors
    found = landing(place)
    return None if found.passes_host or found.device is None else found


def _placing(map_location: Any, locations: set[str]) -> Callable[[torch.UntypedStorage, str], Any] | None:
    """torch's rules for map_location: what to do with a storage, which is on the CPU, that was at one of `locations`.

    None when it is right where it is.
    """
    restore: Any = torch.serialization.default_restore_location
    if map_location is None:
        return None if locations <= {"cpu"} else lambda storage, location: restore(storage, location)
    if isinstance(map_location, dict):
        return lambda storage, location: restore(storage, map_location.get(location, location))
    if isinstance(map_location, (str, torch.device)):
        target = str(map_location)
        return None if target == "cpu" else lambda storage, _: restore(storage, target)

    def call(storage: torch.UntypedStorage, location: str) -> Any:
        placed = map_location(storage, location)
        if placed is None:
            return restore(storage, location)
        if not isinstance(placed, torch.UntypedStorage):
            raise TypeError(f"map_location must return an UntypedStorage or None, not {type(placed).__name__}")
        return placed

    return call


def _fill(stats: dict[str, Any] | None, counters: dict[str, Any]) -> None:
    if stats is not None:
        stats.update(Stats(counters))
