"""Runs measurements: a fresh process each, rounds interleaved in random order, the same idle time before every start."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import flashpack_file
import machine
import model
import torch_file
from cases import Case, Race, Task

MEASURE = Path(__file__).resolve().parent / "measure.py"


class MeasurementError(Exception):
    """A competitor that failed, or gave wrong bytes."""


@dataclass(frozen=True)
class Input:
    """A safetensors file, and what a correct load of it gives."""

    file: Path
    expected: model.Expected


@dataclass
class Setting:
    """Where and with what a race is run."""

    directory: Path
    model: Path
    many: Path
    expected: model.Expected
    python: str  # of penstock
    peer_python: str
    idle_seconds: float = 1.0
    extra: dict[str, Input] = field(default_factory=dict)  # by Race.input

    def input(self, race: Race) -> Input:
        own = {"model": Input(self.model, self.expected), "many": Input(self.many, self.expected)}
        return {**own, **self.extra}[race.input]


@dataclass
class Series:
    """All measurements of one case."""

    case: Case
    results: list[dict[str, Any]] = field(default_factory=list)

    def add(self, result: dict[str, Any]) -> None:
        self.results.append(result)


def input_of(case: Case, setting: Setting) -> Path:
    file = setting.input(case.race).file
    return file if case.race.saves else file.with_suffix(case.input_suffix)


def python_for(case: Case, setting: Setting) -> str:
    return setting.python if case.role == "ours" else setting.peer_python


def ensure_input(case: Case, setting: Setting) -> None:
    """Loads of other formats need their file; it is made once."""
    file = input_of(case, setting)
    if not file.exists():
        task = Task(case.key, str(file), make_input_from=str(setting.input(case.race).file))
        subprocess.run([python_for(case, setting), str(MEASURE), json.dumps(asdict(task))], check=True)


def settle(case: Case, file: Path, idle_seconds: float) -> None:
    """Brings the page cache to the state that the race demands, then lets the machine come to rest."""
    if case.race.warm:
        machine.warm_page_cache(file)
    else:
        machine.drop_page_cache([file])
        left = machine.resident_bytes(file)
        if left > file.stat().st_size // 100:
            raise MeasurementError(f"{file}: {left} bytes stay in the page cache, so a cold start is not possible")
    time.sleep(idle_seconds)


def talk(command: list[str], before_start: Callable[[], None]) -> dict[str, Any]:
    """The driver's side of the protocol of measure.py."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "ready":
                break
        else:
            raise MeasurementError(f"stopped with exit code {process.wait()} before it was ready: {command}")
        before_start()
        process.stdin.write("go\n")
        process.stdin.flush()
        printed = process.stdout.read().strip().splitlines()
        if process.wait() != 0 or not printed:
            raise MeasurementError(f"stopped with exit code {process.wait()}: {command}")
    result: dict[str, Any] = json.loads(printed[-1])
    return result


def execute(case: Case, task: Task, setting: Setting, before_start: Callable[[], None]) -> dict[str, Any]:
    python = python_for(case, setting)
    if case.external:
        before_start()
        return dict(case.external(task, python))
    command = case.native(task) if case.native else [python, str(MEASURE), json.dumps(asdict(task))]
    return talk(command, before_start)


def measure(case: Case, setting: Setting, verify: bool) -> dict[str, Any]:
    """One measurement, with what it did to the page cache and the drive."""
    file, output = input_of(case, setting), setting.directory / f"saved{case.output_suffix}"
    expected = setting.input(case.race).expected
    output.unlink(missing_ok=True)
    task = Task(case.key, str(file), str(output), verify)
    counters: list[tuple[int, int] | None] = []
    cached: list[int] = []

    def before_start() -> None:
        settle(case, file, setting.idle_seconds)
        cached.append(machine.resident_bytes(file))
        counters.append(machine.device_bytes(setting.directory))

    try:
        result = execute(case, task, setting, before_start)
        counters.append(machine.device_bytes(setting.directory))
        result["cache_growth_bytes"] = machine.resident_bytes(output if case.race.saves else file) - cached[0]
        if verify and case.race.saves and case.saves_checked:
            result["checksum"] = checksum_of_saved(output, setting)
    finally:
        output.unlink(missing_ok=True)
    if counters[0] and counters[1]:
        result["device_read_bytes"] = counters[1][0] - counters[0][0]
        result["device_written_bytes"] = counters[1][1] - counters[0][1]
    result.setdefault("bytes", expected.nbytes)
    check(case, result, expected)
    return result


def checksum_of_saved(output: Path, setting: Setting) -> int:
    """Of the tensors in a file, read by others than those who are raced; files of torch by torch itself."""
    if output.suffix == ".pt":
        return torch_file.checksum_file(output, setting.peer_python)
    return (flashpack_file if output.suffix == ".flashpack" else model).checksum_file(output)


def check(case: Case, result: dict[str, Any], wanted: model.Expected) -> None:
    """Refuses a measurement whose bytes were wrong."""
    for key, right in (("page_sample", wanted.page_sample), ("checksum", wanted.checksum)):
        if key in result and result[key] != right:
            raise MeasurementError(f"{case.key}: {key} is {result[key]}, the model's is {right}")


def run_rounds(cases: list[Case], setting: Setting, rounds: int, seed: int) -> Iterator[tuple[Series, int]]:
    """Yields after each measurement the series it belongs to and the round; every case runs once per round."""
    order = random.Random(seed)
    series = [Series(case) for case in cases]
    for case in cases:
        ensure_input(case, setting)
    for number in range(rounds):
        order.shuffle(series)
        for one in series:
            one.add(measure(one.case, setting, verify=number == 0))
            yield one, number


def find_peer_python(root: Path) -> str:
    """The peers' own environment when it was made, else the one this runs in."""
    own = root / ".venv-bench" / "bin" / "python"
    return str(own) if os.access(own, os.X_OK) else sys.executable
