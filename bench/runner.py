"""Runs measurements: a fresh process each, rounds interleaved in random order, a rest before every start."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import flashpack_file
import machine
import model
import torch_file
from cases import COLD, HALF, WARM, Case, Race, Task

MEASURE = Path(__file__).resolve().parent / "measure.py"
Failed = Callable[[Case, str], None]  # is told who failed, and why

# Hypervisors take back what a process has let go of, some two seconds later, and fresh memory is slower from then on.
# Who needs longer to import than others would always meet the slower kind, so everybody waits for it.
MEMORY_REST_SECONDS = 3.0

# Or all of it is had again before each start. Of the model's bytes: what the greediest take, as memory of their own and
# of the page cache's, and some more.
MEMORY_AT_HAND = 2.25


class MeasurementError(Exception):
    """A competitor that failed, or gave wrong bytes."""


@dataclass(frozen=True)
class Input:
    """A checkpoint of safetensors (a file, or a directory of shards), and what a correct load of it gives."""

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
    drop_everything: bool = True  # or only the pages of the raced file, when it has to be cold
    memory_at_hand: bool = False  # else as the last process and the hypervisor have left it
    extra: dict[str, Input] = field(default_factory=dict)  # by Race.input
    warm_file: Path | None = None  # what the page cache was filled with last, for whoever loads it next
    last_end: float = 0.0  # when the process of the last measurement ended, by time.monotonic()

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
    return file if case.race.saves or case.input_suffix == ".safetensors" else file.with_suffix(case.input_suffix)


def python_for(case: Case, setting: Setting) -> str:
    return setting.python if case.role == "ours" else setting.peer_python


def ensure_input(case: Case, setting: Setting) -> None:
    """Loads of other formats need their file; it is made once."""
    file = input_of(case, setting)
    if not file.exists():
        task = Task(case.key, str(file), make_input_from=str(setting.input(case.race).file))
        subprocess.run([python_for(case, setting), str(MEASURE), json.dumps(asdict(task))], check=True)


def settle(case: Case, file: Path, setting: Setting) -> None:
    """Brings the page cache to the state that the race demands, then lets the machine come to rest."""
    if case.race.cache in (COLD, HALF):
        machine.drop_page_cache([file], setting.drop_everything)
        left, size = machine.resident_bytes(file), machine.size_of(file)
        if left > size // 100:
            raise MeasurementError(f"{file}: {left} bytes stay in the page cache, so a cold start is not possible")
    if case.race.cache == HALF:
        machine.warm_half(file)
        held = machine.resident_bytes(file)
        if not 0.4 * size <= held <= 0.6 * size:
            raise MeasurementError(f"{file}: the page cache holds {held} bytes of {size}, not half")
    elif case.race.cache == WARM and not is_still_warm(file, setting):
        # Whoever came before may have left small pages, or room for no others: slower to map than those of read-ahead.
        machine.drop_page_cache([file], everything=False)
        machine.compact_memory()
        machine.warm_page_cache(file)
    setting.warm_file = file if case.race.cache == WARM else None
    time.sleep(rest_before(case, setting, time.monotonic()))
    if setting.memory_at_hand:
        machine.have_memory_at_hand(round(MEMORY_AT_HAND * setting.input(case.race).expected.nbytes))


def rest_before(case: Case, setting: Setting, now: float) -> float:
    """Seconds. Only those who make tensors take fresh memory to speak of."""
    takes_memory = case.race.touches and case.role != "ceiling" and not setting.memory_at_hand
    since_the_last = now - setting.last_end
    return max(setting.idle_seconds, MEMORY_REST_SECONDS - since_the_last if takes_memory else 0.0)


def is_still_warm(file: Path, setting: Setting) -> bool:
    return setting.warm_file == file and machine.resident_bytes(file) >= machine.size_of(file)


class MemoryWatch:
    """Samples what a process has resident, from outside of it: the kernel keeps only the peak of all kinds together."""

    INTERVAL_SECONDS = 0.02

    def __init__(self, process: int) -> None:
        self._process = process
        self._peak: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self.INTERVAL_SECONDS):
            for kind, value in machine.memory_of(self._process).items():
                self._peak[kind] = max(self._peak.get(kind, 0), value)

    def finish(self) -> dict[str, int]:
        """The highest of each kind that was seen, by the names of /proc/PID/status."""
        self._stop.set()
        self._thread.join()
        return self._peak


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
        watch = MemoryWatch(process.pid)
        process.stdin.write("go\n")
        process.stdin.flush()
        printed = []
        for line in process.stdout:
            printed.append(line.strip())
            if printed[-1] == "stopped":
                memory = watch.finish()
        if process.wait() != 0 or "stopped" not in printed:
            watch.finish()
            raise MeasurementError(f"stopped with exit code {process.wait()}: {command}")
    result: dict[str, Any] = json.loads(printed[-1])
    return with_peaks(result, memory)


def with_peaks(result: dict[str, Any], sampled: dict[str, int]) -> dict[str, Any]:
    """Adds growth at its highest. What is there at the end counts too: short work falls between two samples."""
    for kind, name, at_end in (("RssAnon", "anonymous", "anonymous_bytes"), ("RssFile", "file", "file_mapped_bytes")):
        result[f"peak_{name}_bytes"] = max(sampled.get(kind, 0) - result[f"{name}_bytes_before"], result[at_end])
    return result


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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
    remove(output)
    task = Task(case.key, str(file), str(output), verify)
    counters: list[tuple[int, int] | None] = []
    cached: list[int] = []

    def before_start() -> None:
        settle(case, file, setting)
        cached.append(machine.resident_bytes(file))
        counters.append(machine.device_bytes(setting.directory))

    try:
        result = execute(case, task, setting, before_start)
        counters.append(machine.device_bytes(setting.directory))
        result["cache_growth_bytes"] = machine.resident_bytes(output if case.race.saves else file) - cached[0]
        if verify and case.race.saves and case.saves_checked:
            result["checksum"] = checksum_of_saved(case, output, setting)
    finally:
        setting.last_end = time.monotonic()
        remove(output)
    if counters[0] and counters[1]:
        result["device_read_bytes"] = counters[1][0] - counters[0][0]
        result["device_written_bytes"] = counters[1][1] - counters[0][1]
    result.setdefault("bytes", expected.nbytes)
    check(case, result, expected)
    return result


def checksum_of_saved(case: Case, output: Path, setting: Setting) -> int:
    """Of the tensors in a file, read by others than those who are raced; formats of a library's own by that library."""
    if case.read_back:
        task = Task(case.key, str(output), read_back=True)
        command = [python_for(case, setting), str(MEASURE), json.dumps(asdict(task))]
        return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1])
    if output.suffix == ".pt":
        return torch_file.checksum_file(output, setting.peer_python)
    if output.suffix == ".flashpack":
        return flashpack_file.checksum_file(output)
    return model.checksum_file(output)


def check(case: Case, result: dict[str, Any], wanted: model.Expected) -> None:
    """Refuses a measurement whose bytes were wrong."""
    for key, right in (("page_sample", wanted.page_sample), ("checksum", wanted.checksum)):
        if key in result and result[key] != right:
            raise MeasurementError(f"{case.key}: {key} is {result[key]}, the model's is {right}")


@contextmanager
def left_out_if_it_fails(case: Case, out: set[str], failed: Failed | None) -> Iterator[None]:
    try:
        yield
    except (MeasurementError, subprocess.CalledProcessError, OSError) as error:
        if failed is None:
            raise
        out.add(case.key)
        failed(case, str(error))


def run_rounds(
    cases: list[Case], setting: Setting, rounds: int, seed: int, failed: Failed | None = None
) -> Iterator[tuple[Series, int]]:
    """Yields after each measurement the series it belongs to and the round; every case runs as often as its race wants.

    A competitor that fails ends the race, or, with `failed`, is told to it and takes no further part.
    """
    order = random.Random(seed)
    series, out = [Series(case) for case in cases], set[str]()
    for case in cases:
        with left_out_if_it_fails(case, out, failed):
            ensure_input(case, setting)
    for number in range(rounds):
        setting.warm_file = None
        for one in order_of_round(series, setting, order):
            if number >= one.case.race.most_rounds or one.case.key in out:
                continue
            with left_out_if_it_fails(one.case, out, failed):
                one.add(measure(one.case, setting, verify=not one.results))
            if one.case.key not in out:
                yield one, number


def order_of_round(series: list[Series], setting: Setting, order: random.Random) -> list[Series]:
    """Random, but for warm loads of one file: they follow each other, and map what the cache was filled with once.

    How large its pages are is chance, which makes the same load up to six times faster or slower.
    """
    shuffled = [one for one in series for _ in range(one.case.race.per_round)]
    order.shuffle(shuffled)
    together: dict[Any, list[Series]] = {}
    for place, one in enumerate(shuffled):
        loads_warm = one.case.race.cache == WARM and not one.case.race.saves
        together.setdefault(input_of(one.case, setting) if loads_warm else place, []).append(one)
    return [one for group in together.values() for one in group]


def find_peer_python(root: Path) -> str:
    """The peers' own environment when it was made, else the one this runs in."""
    own = root / ".venv-bench" / "bin" / "python"
    return str(own) if os.access(own, os.X_OK) else sys.executable
