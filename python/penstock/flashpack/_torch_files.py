"""torch.save, atomic and durable."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from typing import Any

import torch


def save_torch_file(state: dict[str, Any], path: str) -> None:
    """Saves to a file beside the target, which takes its place once the drive has it all."""
    folder = os.path.dirname(os.path.abspath(path))
    temporary = os.path.join(folder, f".penstock-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)  # less the umask
    try:
        with os.fdopen(descriptor, "wb") as file:
            torch.save(state, file)
            file.flush()
            with suppress(FileNotFoundError):
                _take_mode(descriptor, os.lstat(path))
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync_folder(folder)


def _take_mode(descriptor: int, old: os.stat_result) -> None:
    """Of the file that is replaced; of somebody else's no more than the umask leaves."""
    if not stat.S_ISREG(old.st_mode):
        return
    ours = os.fstat(descriptor)
    mode = old.st_mode & 0o777
    os.fchmod(descriptor, mode if old.st_uid == ours.st_uid else mode & ours.st_mode)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
