"""A package of ours under the name of the package that it stands in for: one module object each, not a second copy."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from .errors import ArgumentError


def stand_in(name: str, ours: str, version: str, how: str) -> None:
    """From here on ``import name`` gives `ours`; `how` is the call that the caller made. A second time is nothing."""
    if _finders(name):
        return
    present = sys.modules.get(name)
    if present is not None:
        where = getattr(present, "__file__", None) or "an unknown place"
        raise ArgumentError(f"{name} is imported already, from {where}; call {how} before that")
    sys.meta_path.insert(0, _Finder(name, ours, version))
    import_module(name)


def stand_aside(name: str) -> None:
    """Takes back what `stand_in` did. Modules that have imported it keep what they have."""
    for finder in _finders(name):
        sys.meta_path.remove(finder)
        for module in [module for module in sys.modules if finder.knows(module)]:
            del sys.modules[module]


class _Finder(DistributionFinder):
    """Finds the package and its submodules, and its entry among the installed packages."""

    def __init__(self, name: str, ours: str, version: str) -> None:
        self.name = name
        self._ours = ours
        self._version = version

    def knows(self, module: str) -> bool:
        """Whether it is the package, or a module of it."""
        return module == self.name or module.startswith(f"{self.name}.")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self.knows(fullname):
            return None
        ours = self._ours + fullname.removeprefix(self.name)
        original = find_spec(ours)
        if original is None:
            return None
        is_package = original.submodule_search_locations is not None
        return ModuleSpec(fullname, _Loader(ours), origin=original.origin, is_package=is_package)

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
        wanted = None if context is None else context.name
        known = wanted is None or wanted.lower() == self.name
        return [_Distribution(self.name, self._ours, self._version)] if known else []


def _finders(name: str) -> list[_Finder]:
    return [finder for finder in sys.meta_path if isinstance(finder, _Finder) and finder.name == name]


class _Loader(Loader):
    """Gives the module of ours."""

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._ours)
        self._original = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # It has run. The import system has given it the other name's spec meanwhile.
        module.__spec__ = self._original


class _Distribution(Distribution):
    """What importlib.metadata says of the package."""

    def __init__(self, name: str, ours: str, version: str) -> None:
        self._name = name
        self._ours = ours
        self._version = version

    def read_text(self, filename: str) -> str | None:
        metadata = f"Metadata-Version: 2.1\nName: {self._name}\nVersion: {self._version}\nSummary: {self._ours}\n"
        return {"METADATA": metadata, "top_level.txt": f"{self._name}\n"}.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        raise FileNotFoundError(f"{os.fspath(path)}: {self._name} is {self._ours} here, and has no files of its own")
