"""Docstrings as this package writes them, for mkdocstrings: lists of arguments become sections that it knows."""

from __future__ import annotations

from typing import Any

import arguments
import griffe


class ArgumentSections(griffe.Extension):
    """Rewrites docstrings of functions and classes before they are parsed."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        rewrite(func)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        rewrite(cls)


def rewrite(described: griffe.Function | griffe.Class) -> None:
    if described.docstring is not None:
        names = {parameter.name for parameter in described.parameters}
        described.docstring.value = arguments.with_sections(described.docstring.value, names)
