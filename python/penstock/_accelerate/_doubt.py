"""What makes penstock leave a call to the original."""

from __future__ import annotations

import os
import stat
from typing import Any

from ..errors import (
    BusyError,
    CancelledError,
    ChangedError,
    DamagedCheckpointError,
    DeviceError,
    Error,
    IoError,
    NoSpaceError,
    OutOfMemoryError,
)

# What the original would meet too, and might not notice, or answer with a signal or half a file.
_FINAL = (
    BusyError,
    CancelledError,
    ChangedError,
    DamagedCheckpointError,
    DeviceError,
    IoError,
    NoSpaceError,
    OutOfMemoryError,
)


def is_final(problem: Error, *, maps: bool = False) -> bool:
    """Whether the original is not to be asked. It is for all that it may take, or has an error of its own for.

    maps: whether the original maps the file, which takes no memory: what has no room for a copy is left to it.
    """
    return isinstance(problem, _FINAL) and not (maps and isinstance(problem, OutOfMemoryError))


def why_not_replaced(path: Any) -> str | None:
    """Why a file is to be written by the original, which writes it in place; None where it can be replaced."""
    if not isinstance(path, (str, os.PathLike)):
        return f"a {type(path).__name__} is not a path"
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return None  # a new file; or a path that both refuse
    if stat.S_ISLNK(status.st_mode):
        return "the target is a symbolic link"
    if not stat.S_ISREG(status.st_mode):
        return "the target is not a regular file"
    return "the target has several names" if status.st_nlink > 1 else None
