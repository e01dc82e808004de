"""python -m penstock.flashpack runs the command. For code that imports flashpack's own, `main` is a click group too.

`convert`, `revert` and `metadata` are its commands. click is imported when one of them is asked for; the command itself
does without.
"""

from __future__ import annotations

import sys
from typing import Any

_OF_CLICK = frozenset({"main", "convert", "metadata", "revert"})


def __getattr__(name: str) -> Any:
    if name in _OF_CLICK:
        from ._click import group

        return group() if name == "main" else group().commands[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    from ._command import main as run

    sys.exit(run())
