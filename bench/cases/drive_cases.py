"""penstock's engine with nothing to fill and nothing to take from: about the most that a load or a save could reach."""

from __future__ import annotations

import os

import programs
from cases import COLD_LOAD, PACK, SAVE, TORCH_SAVE, Case, Task


def read(task: Task) -> list[str]:
    return [str(programs.FOLDER / "drive_bench"), "read", task.file]


def write(task: Task) -> list[str]:
    return [
        str(programs.FOLDER / "drive_bench"),
        "write",
        os.path.dirname(task.output),
        str(os.path.getsize(task.file)),
    ]


CASES = [
    Case("the engine alone, read", COLD_LOAD, "ceiling", native=read),
    *(
        Case("the engine alone, write", race, "ceiling", native=write, saves_checked=False)
        for race in (SAVE, PACK, TORCH_SAVE)
    ),
]
