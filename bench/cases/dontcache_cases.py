"""Buffered reads and writes that leave nothing in the page cache (RWF_DONTCACHE): another ceiling of the drive.

Debian 12's fio can't ask for them, so a program of bench/native does. Kernels before 6.14 and some filesystems refuse.
"""

from __future__ import annotations

import os
from pathlib import Path

import programs
from cases import COLD_LOAD, SAVE, Case, Task

RWF_DONTCACHE = 0x80
CAN_RUN = "import sys; from cases import dontcache_cases; dontcache_cases.check(sys.argv[1])"


def check(directory: str) -> None:
    """Fails where the kernel or the filesystem does not know the flag."""
    path = Path(directory) / "dontcache-trial"
    try:
        with path.open("wb") as file:
            os.pwritev(file.fileno(), [b"x"], 0, RWF_DONTCACHE)
    except OSError as error:
        raise SystemExit(f"the kernel or filesystem refuses RWF_DONTCACHE: {error.strerror}") from None
    finally:
        path.unlink(missing_ok=True)


def read(task: Task) -> list[str]:
    return [str(programs.folder() / "dontcache_bench"), "read", task.file]


def write(task: Task) -> list[str]:
    return [str(programs.folder() / "dontcache_bench"), "write", task.output, str(os.path.getsize(task.file))]


CASES = [
    Case("RWF_DONTCACHE read", COLD_LOAD, "ceiling", native=read, needs=CAN_RUN),
    Case("RWF_DONTCACHE write", SAVE, "ceiling", native=write, needs=CAN_RUN, saves_checked=False),
]
