"""Attributes of other people's classes, replaced so that it can be undone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...errors import LibraryError
from ._libraries import WORKS_WITH

_ABSENT = object()


class Patches:
    """Replaced attributes, by class and name. Patching twice changes nothing."""

    def __init__(self) -> None:
        self._originals: dict[tuple[type, str], Any] = {}

    def replace(self, owner: type, name: str, make: Callable[[Any], Any]) -> None:
        """Replaces an attribute of the class itself by what `make` gives for it."""
        if (owner, name) in self._originals:
            return
        if name not in vars(owner):
            library = owner.__module__.partition(".")[0]
            versions = WORKS_WITH.get(library, "other versions")
            raise LibraryError(f"{library}: {owner.__name__} has no {name}; penstock.flashpack works with {versions}")
        original = vars(owner)[name]
        self._originals[owner, name] = original
        setattr(owner, name, make(original))

    def add(self, owner: type, name: str, value: Any) -> None:
        """Adds an attribute, unless the class has one of this name."""
        if name not in vars(owner):
            self._originals[owner, name] = _ABSENT
            setattr(owner, name, value)

    def undo(self) -> None:
        """Puts everything back as it was."""
        while self._originals:
            (owner, name), original = self._originals.popitem()
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


PATCHES = Patches()


def with_flashpack(flashpack: Callable[..., Any], original: Any) -> Any:
    """A method that calls `flashpack` where use_flashpack=True is given, and the original one otherwise."""
    plain = original.__func__ if isinstance(original, classmethod) else original

    @functools.wraps(plain)
    def method(owner: Any, /, *args: Any, use_flashpack: bool = False, **kwargs: Any) -> Any:
        return (flashpack if use_flashpack else plain)(owner, *args, **kwargs)

    return classmethod(method) if isinstance(original, classmethod) else method
