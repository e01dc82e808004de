"""Which names of which modules are replaced, now and in modules that are imported later, and how they come back."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple

from .._fork import free_in_child
from .._import_watch import ImportWatch
from . import _safetensors, _save_sets, _torch_files

LIBRARIES = ("transformers", "diffusers", "accelerate", "peft", "safetensors", "torch")

# What is replaced wherever a module has it under whatever name: the module that defines it, its name there, and what
# makes the replacement.
_FUNCTIONS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("safetensors", "safe_open", _safetensors.open_replacement),
    ("safetensors.torch", "load_file", _safetensors.load_replacement),
    ("safetensors.torch", "save_file", _safetensors.save_replacement),
    ("torch.serialization", "load", _torch_files.load_replacement),
    ("torch.serialization", "save", _torch_files.save_replacement),
)
# Methods that save a model, by module and class.
_METHODS = {
    "transformers.modeling_utils": ("transformers", "PreTrainedModel", "save_pretrained"),
    "diffusers.models.modeling_utils": ("diffusers", "ModelMixin", "save_pretrained"),
    "accelerate.accelerator": ("accelerate", "Accelerator", "save_model"),
}


class Pair(NamedTuple):
    """A function of a library, and ours."""

    library: str
    original: Any
    replacement: Any


class Switch:
    """What is on. Every change is made under one lock; calls ask `is_on` without it."""

    def __init__(self) -> None:
        self._lock = free_in_child(threading.RLock())
        self._calls: dict[object, tuple[str, ...]] = {}  # by who made them
        self._on: frozenset[str] = frozenset()
        self._pairs: dict[tuple[str, str], Pair] = {}
        self._methods: dict[str, Pair] = {}
        self._watch = ImportWatch(self.wants, self.adopt)

    @property
    def libraries(self) -> tuple[str, ...]:
        """Those that are on."""
        return tuple(name for name in LIBRARIES if name in self._on)

    def is_on(self) -> bool:
        """For replacements that somebody has kept: without any library they are the originals."""
        return bool(self._on)

    def turn_on(self, caller: object, libraries: tuple[str, ...]) -> None:
        """Until `turn_off` for the same caller."""
        with self._lock:
            self._calls[caller] = libraries
            self._apply()

    def turn_off(self, caller: object) -> None:
        """A second time is nothing."""
        with self._lock:
            if self._calls.pop(caller, None) is not None:
                self._apply()

    def turn_all_off(self) -> None:
        with self._lock:
            self._calls.clear()
            self._apply()

    def is_wanted_by(self, caller: object) -> bool:
        """Whether its call was not taken back."""
        return caller in self._calls

    def _apply(self) -> None:
        wanted = frozenset(name for libraries in self._calls.values() for name in libraries)
        if wanted == self._on:
            return
        self._on = wanted
        self._restore()
        self._watch.set(bool(self._on))
        self._adopt(list(sys.modules))

    def wants(self, module: str) -> bool:
        """Whether a module that is being imported has, or may have, something to replace."""
        return module == "torch" or (module.partition(".")[0] in LIBRARIES and not module.startswith("torch."))

    def adopt(self, module: str) -> None:
        """Replaces what is to be replaced in a module that this thread has just imported."""
        with self._lock:
            if self._on:
                self._adopt([module], imported=module)

    def _adopt(self, modules: Sequence[str], imported: str = "") -> None:
        if self._make_pairs(imported):
            modules = list(sys.modules)  # others have taken the names already
        table = {id(pair.original): pair for pair in self._pairs.values()}
        for name in modules:
            self._swap(name, table, lambda pair: pair.replacement, self._is_replaced_in)
            if name in _METHODS:
                self._replace_method(name)

    def _restore(self) -> None:
        table = {id(pair.replacement): pair for pair in self._pairs.values()}
        for name in list(sys.modules):
            self._swap(name, table, lambda pair: pair.original, lambda *which: not self._is_replaced_in(*which))
        for name, pair in self._methods.items():
            _, cls, method = _METHODS[name]
            owner = getattr(sys.modules.get(name), cls, None)
            if owner is not None and pair.library not in self._on and vars(owner).get(method) is pair.replacement:
                setattr(owner, method, pair.original)

    def _make_pairs(self, imported: str) -> bool:
        """For the libraries that are there. Another thread may be importing one: it comes here by itself."""
        known = len(self._pairs)
        for module, name, make in _FUNCTIONS:
            library = module.partition(".")[0]
            original = getattr(sys.modules.get(module), name, None)
            if original is None or (module, name) in self._pairs:
                continue
            if imported != library and _is_being_imported(library):
                continue
            self._pairs[module, name] = Pair(library, original, make(original, self.is_on))
        return len(self._pairs) > known

    def _replace_method(self, module: str) -> None:
        library, cls, method = _METHODS[module]
        owner = getattr(sys.modules[module], cls, None)
        if owner is None or library not in self._on:
            return
        current = vars(owner)[method]
        pair = self._methods.get(module)
        if pair is not None and current is pair.replacement:
            return
        if pair is None or current is not pair.original:  # others replace methods too
            replacement = _save_sets.save_replacement(f"{library}.{method}", current, self.is_on)
            pair = self._methods[module] = Pair(library, current, replacement)
        setattr(owner, method, pair.replacement)

    def _is_replaced_in(self, module: str, pair: Pair) -> bool:
        """Whether a module is to have the replacement: its own library decides, or the function's for all others."""
        root = module.partition(".")[0]
        if root == "penstock":
            return False
        return (root if root in LIBRARIES else pair.library) in self._on

    @staticmethod
    def _swap(
        name: str, table: dict[int, Pair], choose: Callable[[Pair], Any], wanted: Callable[[str, Pair], bool]
    ) -> None:
        module = sys.modules.get(name)
        if not isinstance(module, ModuleType):
            return
        for attribute, value in list(vars(module).items()):
            pair = table.get(id(value))
            if pair is not None and wanted(name, pair):
                with suppress(AttributeError, TypeError):
                    setattr(module, attribute, choose(pair))


def _is_being_imported(library: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(library), "__spec__", None), "_initializing", False))
