"""penstock from C++: the programs of bench/native, as `scripts/build_native.sh release` builds them."""

from __future__ import annotations

import programs
from cases import ASSIGN_COLD, ASSIGN_WARM, COLD_REUSED, PACK, SAVE, WARM_LOAD, Case, Task, find_case, races
from flashpack_file import FLASHPACK_INPUT, FLASHPACK_OUTPUT


def load(*options: str) -> list[str]:
    return [str(programs.FOLDER / "load_bench"), *options]


def save(task: Task) -> list[str]:
    return [str(programs.FOLDER / "save_bench"), task.file, task.output]


LOADS = races("cold", "warm", "half", "shards-cold", "moe-cold", "moe-warm", "20k-warm", "1mib-warm")


def repeated(task: Task) -> list[str]:
    return load("--repeats", str(find_case(task.case).race.repeats), task.file)


CASES = [
    *(Case("penstock C++", race, "ours", native=repeated) for race in LOADS),
    Case("penstock C++", COLD_REUSED, "ours", native=lambda task: load("--reuse", task.file)),
    Case("penstock C++, copied", WARM_LOAD, "ours", native=lambda task: load("--buffered", task.file)),
    Case("penstock C++", SAVE, "ours", native=save),
    Case("penstock C++", PACK, "ours", native=save, **FLASHPACK_OUTPUT),
    Case("penstock C++", ASSIGN_COLD, "ours", native=lambda task: load(task.file), **FLASHPACK_INPUT),
    Case("penstock C++", ASSIGN_WARM, "ours", native=lambda task: load(task.file), **FLASHPACK_INPUT),
]
