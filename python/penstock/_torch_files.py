"""Torch files: any object, pickled by Python, its storages written by the engine."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import torch

from . import _core
from ._dtypes import BITS
from ._options import path_text, save_options
from ._pickle import PickledStorage, pickle_object

if TYPE_CHECKING:
    from ._options import Path
    from ._progress import Callback


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
    text = path_text(path)
    legacy = arguments.get("format") == "torch-legacy"
    arguments["format"] = "torch-legacy" if legacy else "torch"
    arguments.pop("shared", None)  # tensors that share memory are what storages are for
    if isinstance(obj, torch.nn.Module) and not whole_modules:
        obj = obj.state_dict()
    pickled = pickle_object(obj, legacy=legacy, pickle_module=pickle_module, protocol=protocol)
    options = save_options(**arguments, shared="duplicate", pickle=pickled.data)
    writer = _core.Writer(text, options, callback)
    owners = []
    for each in pickled.storages:
        storage = _on_cpu(each)
        width = BITS[each.dtype] // 8
        writer.add(each.key, each.dtype, (storage.nbytes() // width,), storage.data_ptr(), None)
        owners.append(storage)
    return writer, owners


def _on_cpu(each: PickledStorage) -> torch.UntypedStorage:
    storage = each.storage
    return storage if storage.device.type == "cpu" else storage.cpu()
