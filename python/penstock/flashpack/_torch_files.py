"""torch.save, atomic and durable."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch


def save_torch_file(state: dict[str, Any], path: str) -> None:
    """Saves to a file beside the target, which takes its place once the drive has it all."""
    folder = os.path.dirname(os.path.abspath(path))
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".penstock-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fchmod(descriptor, _mode_of(path))
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync_folder(folder)


def _mode_of(path: str) -> int:
    """The permissions of the file that is replaced, or those that a new one gets."""
    try:
        return os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
