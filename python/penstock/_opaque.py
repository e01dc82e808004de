"""Values of a torch checkpoint that are more than data."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from . import _core


def _printable(text: str) -> str:
    """Names come from a file, and may hold what a terminal would obey."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


class OpaqueWarning(UserWarning):
    """A stream of a torch checkpoint leaves out values that are more than data."""


class OpaqueValue(NamedTuple):
    """Where a torch checkpoint has a value that is more than data, and what it is."""

    path: str  # in the tree: "hyper_parameters"; empty for the whole of it
    name: str  # of its class: "argparse.Namespace"

    def __str__(self) -> str:
        return f"{_printable(self.path) or 'all of it'} ({_printable(self.name)})"


def warn_of_opaque(reader: _core.Reader, title: str) -> None:
    """For those who are given tensors alone, all of them, and would not see what is missing."""
    found = reader.opaque()
    if not found:
        return
    shown = ", ".join(str(OpaqueValue(*value)) for value in found[:3]) + (", ..." if len(found) > 3 else "")
    warnings.warn(f"{title}: left out what is more than data: {shown}", OpaqueWarning, stacklevel=3)


class Opaque:
    """An object, a class or a function that a torch checkpoint names, and that was neither imported nor made.

    ``load(path, opaque="keep")`` puts it where the object was. What the pickle says of it is here, as data: tensors in
    it are tensors.
    """

    name: str
    """What would have been called or looked up: "argparse.Namespace"."""
    arguments: tuple[Any, ...] | None
    """What it would have been called with; None for a class or a function by itself."""
    state: Any
    """What would have been set on it, most often a dict of its attributes; None where there is nothing."""
    items: list[Any]
    """What would have been appended to it, as to a list."""
    entries: list[tuple[Any, Any]]
    """What would have been set in it by key, as in a dict."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.arguments = None
        self.state = None
        self.items = []
        self.entries = []

    def _fill(
        self, arguments: tuple[Any, ...] | None, states: list[Any], items: list[Any], entries: list[tuple[Any, Any]]
    ) -> None:
        self.arguments = arguments
        self.state = states[0] if len(states) == 1 else states or None
        self.items = items
        self.entries = entries

    def __repr__(self) -> str:
        return f"<penstock.Opaque: {_printable(self.name)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} can't be saved or copied: the object that it stands for was never made")
