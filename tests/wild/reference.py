"""What other readers find in a checkpoint: torch, and safetensors.

torch refuses files that hold objects of other libraries as long as nothing may be executed. Those are read by torch
with an unpickler that knows a short list of names and puts an inert stand-in where any other is asked for: it takes
whatever it is called with, remembers it, and does nothing. So no class of a checkpoint is ever imported. TorchScript
archives are loaded by torch.jit, which interprets what little of their code loading takes; they are pinned like all
other files.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import safetensors.torch
import torch

# What may be called while a file is read. Everything here builds data and nothing else.
HARMLESS = {
    "_codecs": {"encode"},
    "builtins": {"set", "frozenset", "complex", "bytearray", "bytes"},
    "__builtin__": {"set", "frozenset", "complex", "bytearray", "bytes"},
    "collections": {"OrderedDict"},
    "numpy": {"dtype", "ndarray"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "torch": {"Size", "device"} | {name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)},
    "torch._utils": {
        "_rebuild_tensor",
        "_rebuild_tensor_v2",
        "_rebuild_tensor_v3",
        "_rebuild_parameter",
        "_rebuild_parameter_with_state",
    },
}


class StandIn:
    """An object whose class is not known here: what it was made of, and no behaviour."""

    class_name = ""

    def __new__(cls, *arguments: Any, **keywords: Any) -> StandIn:
        made = super().__new__(cls)
        made.arguments, made.keywords = arguments, keywords
        made.state, made.values, made.items = None, [], []
        return made

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    state: Any
    values: list[Any]  # appended to it, as to a list
    items: list[tuple[Any, Any]]  # set in it, as in a dict

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def append(self, value: Any) -> None:
        self.values.append(value)

    def extend(self, values: list[Any]) -> None:
        self.values += values

    def __call__(self, *arguments: Any) -> StandIn:
        return StandIn(self, *arguments)


class InertUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_storage = module in ("torch", "torch.cuda") and name.endswith("Storage") and name.isidentifier()
        if is_storage or name in HARMLESS.get(module, ()):
            return super().find_class(module, name)
        return type(name, (StandIn,), {"class_name": f"{module}.{name}"})


def inert_load(file: Any, **arguments: Any) -> Any:
    return InertUnpickler(file, **arguments).load()


NUMBERS = "biufc"  # the kinds of NumPy's arrays that are tensors; others hold text, dates or objects

# How a path names a key that is no text and no number, but for the digits that tell several apart.
ANY_KEY = "key"

# As torch wants it: a module with these two names in it.
INERT_PICKLE = SimpleNamespace(__name__="inert_pickle", Unpickler=InertUnpickler, load=inert_load)


def read_tree(path: Path, reader: str) -> Any:
    """What was saved, as the reader of that name gives it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old files torch has much to say
        if reader == "safetensors":
            return safetensors.torch.load_file(path)
        if reader == "torch":
            return torch.load(path, weights_only=True, map_location="cpu")
        if reader == "stand-ins":
            return torch.load(path, weights_only=False, map_location="cpu", pickle_module=INERT_PICKLE)
        if reader == "script":
            return torch.jit.load(path, map_location="cpu").state_dict()
    raise ValueError(f"there is no reader {reader!r}")


def named_tensors(tree: Any) -> Iterator[tuple[str, Any]]:
    """Every tensor and array of a tree with its path, as docs/formats/torch.md says."""
    yield from _Walk().visit(tree, "")


class _Walk:
    def __init__(self) -> None:
        self._seen: set[int] = set()  # stand-ins: objects refer to each other at will

    def visit(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in NUMBERS):
            yield path or "tensor", value
        elif isinstance(value, dict):
            yield from self._entries(value.items(), path)
        elif isinstance(value, (list, tuple, set, frozenset)):
            yield from self._entries(enumerate(value), path)
        elif isinstance(value, StandIn) and id(value) not in self._seen:
            self._seen.add(id(value))
            attributes = value.state if isinstance(value.state, dict) else {"state": value.state}
            for entries in (attributes.items(), value.items, enumerate(value.values), [("args", value.arguments)]):
                yield from self._entries(entries, path)

    def _entries(self, entries: Iterable[tuple[Any, Any]], path: str) -> Iterator[tuple[str, Any]]:
        for key, value in entries:
            name = str(key) if key is None or isinstance(key, (str, int)) else ANY_KEY
            yield from self.visit(value, f"{path}/{name}" if path else name)
