"""Loads to and saves from the simulated device of tests/sim, and host loads and saves before and after devices came.

device_race.py runs them: it measures the drive first, as links are given in multiples of its rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import programs
from cases import BEFORE_RACES, COLD_LOAD, COLD_REUSED, DEVICE_HOLD, DEVICE_LOAD, SAVE, WARM_LOAD, Case, Task
from cases.penstock_cases import load, load_into_reused_memory, save

# As its README.md says for benchmarks, with room for the model and two snapshots of it.
SIMULATOR = {
    "PENSTOCK_SIM_CHECK": "0",
    "PENSTOCK_SIM_DELAY": "0",
    "PENSTOCK_SIM_KEEP": "1",
    "PENSTOCK_SIM_MEMORY": str(64 << 30),
}
ONE_REQUEST = {"PENSTOCK_QUEUE_DEPTH": "1", "PENSTOCK_THREADS": "1", "PENSTOCK_BLOCK_SIZE": "2MiB"}
LINKS = (2.0, 1.0, 0.5, 0.25)  # of the drive's rate
Command = Callable[[Task], list[str]]


@dataclass
class Measured:
    """What device_race.py has found out before the cases run."""

    drive: float = 0.0  # bytes per second; 0: not measured, links have no limit


measured = Measured()


def simulator() -> Path:
    return programs.FOLDER.parent.parent / "sim" / "libcuda.so.1"


def with_settings(settings: dict[str, str], command: list[str]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in settings.items()), *command]


def on_device(*arguments: str, link: float = 2.0, settings: dict[str, str] | None = None) -> Command:
    """device_bench with a link of so many times the drive's rate; TASK's paths follow the arguments."""

    def command(task: Task) -> list[str]:
        rate = {"PENSTOCK_SIM_LINK": str(round(link * measured.drive)), "PENSTOCK_LIBCUDA": str(simulator())}
        paths = [task.file, task.output] if arguments[0] == "hold" else [task.file]
        program = str(programs.FOLDER / "device_bench")
        return with_settings({**SIMULATOR, **rate, **(settings or {})}, [program, *arguments, *paths])

    return command


def on_host(program: str, *arguments: str, settings: dict[str, str] | None = None) -> Command:
    return lambda task: with_settings(settings or {}, [str(programs.FOLDER / program), *arguments, task.file])


DRIVE = Case("drive", DEVICE_LOAD, "ceiling", native=on_host("drive_bench", "read"))
DRIVE_ONE = Case(
    "drive, one request", DEVICE_LOAD, "ceiling", native=on_host("drive_bench", "read", settings=ONE_REQUEST)
)
HOST = Case("host, reused memory", DEVICE_LOAD, "ceiling", native=on_host("load_bench", "--reuse"))
TO_DEVICE = {
    link: Case(f"device, link {link:g} x drive", DEVICE_LOAD, "ours", native=on_device("load", link=link))
    for link in LINKS
}
ONE_BLOCK = Case("device, one block", DEVICE_LOAD, "ours", native=on_device("load", settings=ONE_REQUEST))
FIRST = Case("device, the first load", DEVICE_LOAD, "ours", native=on_device("load", "--first"))
PURE_COPY = Case("pure copy", DEVICE_HOLD, "ceiling", native=on_device("copy"), saves_checked=False)
HELD = Case("save_async", DEVICE_HOLD, "ours", native=on_device("hold"))
HELD_ON_DEVICE = Case('save_async, snapshot="device"', DEVICE_HOLD, "ours", native=on_device("hold", "--device"))
DEVICE_CASES = [DRIVE, DRIVE_ONE, HOST, *TO_DEVICE.values(), ONE_BLOCK, FIRST, PURE_COPY, HELD, HELD_ON_DEVICE]

# The same function in two builds: ours, and the one whose Python takes the place of the peers'.
STARTS = {COLD_LOAD: load, COLD_REUSED: load_into_reused_memory, WARM_LOAD: load, SAVE: save}
NOW = [Case("now", BEFORE_RACES[race.key], "ours", start=start) for race, start in STARTS.items()]
BEFORE = [replace(case, name="before", role="peer") for case in NOW]

CASES = [*DEVICE_CASES, *NOW, *BEFORE]
