"""penstock from C++: the programs of bench/native, as `scripts/build_native.sh release` builds them."""

from __future__ import annotations

from pathlib import Path

from cases import ASSIGN_COLD, ASSIGN_WARM, COLD_LOAD, PACK, SAVE, WARM_LOAD, Case, Task
from flashpack_file import FLASHPACK_INPUT, FLASHPACK_OUTPUT

PROGRAMS = Path(__file__).resolve().parents[2] / "build" / "release" / "bench" / "native"


def load(*options: str) -> list[str]:
    return [str(PROGRAMS / "load_bench"), *options]


def save(task: Task) -> list[str]:
    return [str(PROGRAMS / "save_bench"), task.file, task.output]


CASES = [
    Case("penstock C++", COLD_LOAD, "ours", native=lambda task: load(task.file)),
    Case("penstock C++, reused memory", COLD_LOAD, "ours", native=lambda task: load("--reuse", task.file)),
    Case("penstock C++", WARM_LOAD, "ours", native=lambda task: load(task.file)),
    Case("penstock C++, copied", WARM_LOAD, "ours", native=lambda task: load("--buffered", task.file)),
    Case("penstock C++", SAVE, "ours", native=save),
    Case("penstock C++", PACK, "ours", native=save, **FLASHPACK_OUTPUT),
    Case("penstock C++", ASSIGN_COLD, "ours", native=lambda task: load(task.file), **FLASHPACK_INPUT),
    Case("penstock C++", ASSIGN_WARM, "ours", native=lambda task: load(task.file), **FLASHPACK_INPUT),
]
