"""Between a library's classes and those that have the FlashPack methods too."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

_PREFIX = "FlashPack"
_MAKES_ANOTHER_MODEL = ("__init__", "forward")


@cache
def with_mixin(base: type, mixin: type) -> type:
    """A class that has the mixin: the class itself, or a subclass named FlashPack and its name."""
    if issubclass(base, mixin):
        return base
    return type(_PREFIX + base.__name__, (base, mixin), {"__module__": base.__module__, "__doc__": base.__doc__})


def plain_class(cls: type, mixin: type, roots: Collection[type]) -> type:
    """The class without the mixin that can be loaded in its place. Else the class itself.

    What `with_mixin` makes, and what users write in its place, goes into configurations under the name of the class
    that it is made from, so that the library finds it on its own. A class that is a model of its own keeps its name.
    roots: the library's classes that are no models yet.
    """
    for ancestor in cls.__mro__:
        if not issubclass(ancestor, mixin):
            return cls if ancestor in roots or ancestor.__name__.endswith("PreTrainedModel") else ancestor
        if any(name in vars(ancestor) for name in _MAKES_ANOTHER_MODEL):
            return cls
    return cls


def find_class(module: Any, name: str) -> type | None:
    """A module's class by its name, with or without the prefix of ours."""
    for candidate in (name, name.removeprefix(_PREFIX)):
        try:
            found = getattr(module, candidate, None)
        except ImportError:  # a lazy module whose part for this name needs something that is not installed
            continue
        if isinstance(found, type):
            return found
    return None
