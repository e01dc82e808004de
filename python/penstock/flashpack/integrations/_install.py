"""install_as_flashpack: penstock.flashpack under the name of the package that it stands in for."""

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

from ...errors import ArgumentError
from ..version import __version__

_NAME = "flashpack"
_OURS = "penstock.flashpack"


def install_as_flashpack() -> None:
    """From here on ``import flashpack`` gives penstock.flashpack, in this process.

    Libraries that use flashpack where it is installed, as diffusers does for use_flashpack=True, use penstock then. It
    is to be called before they are imported, because they look for it only once. Calling it again changes nothing;
    `uninstall_as_flashpack` takes it back.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    present = sys.modules.get(_NAME)
    if present is not None:
        where = getattr(present, "__file__", None) or "an unknown place"
        raise ArgumentError(f"flashpack is imported already, from {where}; call install_as_flashpack() before that")
    _check_diffusers()
    sys.meta_path.insert(0, _Finder())
    import_module(_NAME)


def uninstall_as_flashpack() -> None:
    """Takes back what `install_as_flashpack` did. Modules that have imported flashpack keep what they have."""
    finders = [finder for finder in sys.meta_path if isinstance(finder, _Finder)]
    for finder in finders:
        sys.meta_path.remove(finder)
    if finders:
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]


def _check_diffusers() -> None:
    if "diffusers" not in sys.modules:
        return
    utils = import_module("diffusers.utils")
    is_available = getattr(utils, "is_flashpack_available", None)
    if is_available is not None and not is_available():
        raise ArgumentError(
            "diffusers is imported already and has found no flashpack; call install_as_flashpack() before that, "
            "or use patch_integrations()"
        )


def _is_ours(name: str) -> bool:
    return name == _NAME or name.startswith(f"{_NAME}.")


class _Finder(DistributionFinder):
    """Finds flashpack and its submodules, and its entry among the installed packages."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not _is_ours(fullname):
            return None
        original = find_spec(_OURS + fullname.removeprefix(_NAME))
        if original is None:
            return None
        is_package = original.submodule_search_locations is not None
        return ModuleSpec(fullname, _Loader(), origin=original.origin, is_package=is_package)

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
        name = None if context is None else context.name
        return [_Distribution()] if name is None or name.lower() == _NAME else []


class _Loader(Loader):
    """Gives the module of ours: the same object, not a second copy of its classes."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(_OURS + spec.name.removeprefix(_NAME))
        self._original = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # It has run. The import system has given it the other name's spec meanwhile.
        module.__spec__ = self._original


class _Distribution(Distribution):
    """What importlib.metadata says of flashpack."""

    def read_text(self, filename: str) -> str | None:
        metadata = f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {__version__}\nSummary: penstock.flashpack\n"
        return {"METADATA": metadata, "top_level.txt": f"{_NAME}\n"}.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        raise FileNotFoundError(f"{os.fspath(path)}: flashpack is penstock.flashpack here, and has no files of its own")
