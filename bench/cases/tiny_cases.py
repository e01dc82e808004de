"""Three small tensors: what a save and a load cost when there is next to nothing to move."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cases import TINY_LOAD, TINY_SAVE, Case, Task
from cases.flashpack_cases import assign, pack, pack_and_sync
from flashpack_file import FLASHPACK_INPUT, FLASHPACK_OUTPUT


def write_small_file(sync_directory: bool) -> Callable[[Task], Callable[[], Any]]:
    """The least that a safe save does: write beside the target, fsync, rename."""

    def start(task: Task) -> Callable[[], Any]:
        content = Path(task.file).read_bytes()
        directory, temporary = os.path.dirname(task.output), task.output + ".part"

        def run() -> None:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(descriptor, content)
            os.fsync(descriptor)
            os.close(descriptor)
            os.rename(temporary, task.output)
            if sync_directory:
                descriptor = os.open(directory, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)

        return run

    return start


def load(task: Task) -> Callable[[], Any]:
    import penstock
    import torch  # noqa: F401  its import is not what is measured

    return lambda: penstock.load(task.file)


CASES = [
    Case("write, fsync, rename", TINY_SAVE, "ceiling", start=write_small_file(sync_directory=False)),
    Case(
        "write, fsync, rename, fsync of the directory",
        TINY_SAVE,
        "ceiling",
        start=write_small_file(sync_directory=True),
    ),
    Case("flashpack pack_to_file + fsync", TINY_SAVE, "peer", start=pack_and_sync, **FLASHPACK_OUTPUT),
    Case("penstock pack_to_file", TINY_SAVE, "ours", start=pack, **FLASHPACK_OUTPUT),
    Case("flashpack assign_from_file", TINY_LOAD, "peer", start=assign(ours=False), **FLASHPACK_INPUT),
    Case("penstock assign_from_file", TINY_LOAD, "ours", start=assign(ours=True), **FLASHPACK_INPUT),
    Case("penstock.load", TINY_LOAD, "ours", start=load, **FLASHPACK_INPUT),
]
