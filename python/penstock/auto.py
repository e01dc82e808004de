"""import penstock.auto: `penstock.accelerate`, where the environment asks for it.

PENSTOCK_ACCELERATE is "1" for all libraries, or names some of them: "transformers,torch". Without it, or with "0",
importing this does nothing. ``python -m penstock.auto train.py ...`` (or ``-m package ...``) runs a program that does
not import it; there the variable need not be set.
"""

from __future__ import annotations

import os
import runpy
import sys

from . import accelerate
from .errors import ArgumentError

_VARIABLE = "PENSTOCK_ACCELERATE"


def _accelerate(default: str) -> None:
    wanted = os.environ.get(_VARIABLE, default).strip()
    if wanted in ("", "0"):
        return
    names = [] if wanted == "1" else [name.strip() for name in wanted.split(",") if name.strip()]
    try:
        accelerate(*names)
    except ArgumentError as problem:
        raise ArgumentError(f"{_VARIABLE}={wanted}: {problem}") from None


def _run(arguments: list[str]) -> None:
    """As ``python ARGUMENTS...`` does."""
    if not arguments or arguments == ["-m"]:
        sys.exit("usage: python -m penstock.auto (PROGRAM.py | -m MODULE) [ARGUMENT...]")
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    _accelerate("1")
    _run(sys.argv[1:])
else:
    _accelerate("0")
