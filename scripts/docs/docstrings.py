"""Docstrings as this package writes them, for mkdocstrings: lists of arguments become sections that it knows."""

from __future__ import annotations

from typing import Any

import arguments
import griffe


class ArgumentSections(griffe.Extension):
    """Rewrites docstrings of functions before they are parsed."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring is not None:
            names = {parameter.name for parameter in func.parameters}
            func.docstring.value = arguments.with_sections(func.docstring.value, names)
