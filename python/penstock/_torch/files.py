"""Torch files: any object, pickled by Python, its storages written by the engine."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import torch

from .. import _core
from .._options import save_options, target_text
from .devices import streams
from .pickles import Pickled, pickle_object
from .tensors import pointer

if TYPE_CHECKING:
    from .._options import Path
    from .._progress import Callback

# Some element type of each width in bytes.
_ELEMENTS = {1: "U8", 2: "U16", 4: "U32", 8: "U64", 16: "C128"}


def make_tree_writer(
    obj: Any,
    path: Path,
    arguments: dict[str, Any],
    callback: Callback | None,
    *,
    pickle_module: Any = pickle,
    protocol: int = 2,
    whole_modules: bool = False,
) -> tuple[_core.Writer, list[Any]]:
    """A writer of `obj` as torch.save would save it, and what keeps its memory alive.

    whole_modules: pickle a module as it is, code references and all, as torch.save does; else its state dict.
    """
    if isinstance(obj, torch.nn.Module) and not whole_modules:
        obj = obj.state_dict()
    legacy = arguments.get("format") == "torch-legacy"
    pickled = pickle_object(obj, legacy=legacy, pickle_module=pickle_module, protocol=protocol)
    return make_pickled_writer(pickled, path, arguments, callback)


def make_pickled_writer(
    pickled: Pickled, path: Path, arguments: dict[str, Any], callback: Callback | None
) -> tuple[_core.Writer, list[Any]]:
    """The same, of what was pickled already."""
    legacy = arguments.get("format") == "torch-legacy"
    arguments["format"] = "torch-legacy" if legacy else "torch"
    arguments["checksums"] = bool(arguments.get("checksums"))  # None: by default, and here is no place for any
    arguments.pop("shared", None)  # tensors that share memory are what storages are for
    options = save_options(
        **arguments,
        shared="duplicate",
        pickle=pickled.data,
        around_pickle=pickled.around,
        streams=streams(each.storage for each in pickled.storages),
    )
    writer = _core.Writer(target_text(path), options, callback)
    owners = []
    for each in pickled.storages:
        storage = each.storage if _is_reachable(each.storage) else each.storage.cpu()
        # A zip has bytes; the legacy format counts elements, of whatever kind.
        width = each.width if legacy else 1
        writer.add(each.key, _ELEMENTS[width], (storage.nbytes() // width,), storage.data_ptr(), None)
        owners.append(storage)
    return writer, owners


def _is_reachable(storage: Any) -> bool:
    """Whether the engine reads the memory itself."""
    if storage.device.type == "cpu" or storage.nbytes() == 0:
        return True
    return _core.device_of(pointer(storage)) is not None
