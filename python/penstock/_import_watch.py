"""Tells when modules have been imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class ImportWatch(MetaPathFinder):
    """Finds nothing itself: it has `adopt` look at modules when they have been imported.

    wants: whether a module, by its name, is one to look at. adopt: is given its name, in the thread that has imported
    it. It watches from `set(True)` to `set(False)`; who calls these holds a lock.
    """

    def __init__(self, wants: Callable[[str], bool], adopt: Callable[[str], None]) -> None:
        self._wants = wants
        self._adopt = adopt
        self._is_watching = False

    def set(self, watching: bool) -> None:
        """Watches, or no longer. A second time is nothing."""
        if watching and not self._is_watching:
            sys.meta_path.insert(0, self)
        elif not watching and self._is_watching:
            sys.meta_path.remove(self)
        self._is_watching = watching

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self._wants(fullname):
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                self._watch(spec)
                return spec
        return None

    def _watch(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        run = getattr(loader, "exec_module", None)
        if run is None or isinstance(loader, type):
            return

        def exec_module(module: ModuleType) -> None:
            with suppress(AttributeError):
                del loader.exec_module
            run(module)
            self._adopt(spec.name)

        with suppress(AttributeError):
            loader.exec_module = exec_module
