"""`rename=`: other names for the tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Union

from ._options import checked_text
from ._select import unknown_tensor
from .errors import ArgumentError

if TYPE_CHECKING:
    from . import _core
    from ._select import Source

Rename = Union[Mapping[str, str], Callable[[str], str], None]


def strip_prefix(prefix: str) -> Callable[[str], str]:
    """For `rename=`: takes a prefix off the names that have it. A name that is nothing else is kept.

    ``penstock.load_into(model, path, rename=penstock.strip_prefix("module."))`` loads what a wrapped model has saved.
    """
    return lambda name: name.removeprefix(prefix) or name


def add_prefix(prefix: str) -> Callable[[str], str]:
    """For `rename=`: puts a prefix before every name."""
    return lambda name: prefix + name


def renamer(rename: Rename, reader: Callable[[], Source]) -> Callable[[str], str] | None:
    """The function that gives a tensor its new name. A dict must name tensors of the reader, and no others."""
    if rename is None or callable(rename):
        return None if rename is None else _checked(rename)
    if not isinstance(rename, Mapping):
        raise ArgumentError(f"rename: expected a dict or a callable, not {type(rename).__name__}")
    given = dict(rename)
    opened = reader()
    known = set(opened.names())
    for name in given:
        if name not in known:
            raise unknown_tensor(opened, name)
    return _checked(lambda name: given.get(name, name))


def new_names(rename: Rename, reader: _core.Reader, selected: list[str] | None) -> dict[str, str] | None:
    """The new name of each tensor that was selected; None when nothing is renamed. Two of one name are refused."""
    new_name = renamer(rename, lambda: reader)
    if new_name is None:
        return None
    renamed: dict[str, str] = {}
    taken: dict[str, str] = {}
    for name in reader.names() if selected is None else selected:
        new = renamed[name] = new_name(name)
        if (other := taken.setdefault(new, name)) != name:
            raise ArgumentError(f"rename: {other!r} and {name!r} would both be called {new!r}")
    return renamed


def _checked(rename: Callable[[str], Any]) -> Callable[[str], str]:
    def new_name(name: str) -> str:
        new = rename(name)
        if not isinstance(new, str):
            raise ArgumentError(f"rename: the new name of {name!r} must be a string, not {type(new).__name__}")
        if not new and name:
            raise ArgumentError(f"rename: the new name of {name!r} is empty")
        return checked_text("the name", new)

    return new_name
