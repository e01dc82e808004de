"""How cost grows: loads and saves of models of several sizes, and of several numbers of tensors.

A straight line through each says what a load costs by itself, and what each further GiB or tensor costs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import machine
import model
from cases import GROW_LOAD, GROW_LOAD_COUNT, GROW_SAVE, GROW_SAVE_COUNT, Case, Race, all_cases
from runner import Input, Series, Setting, run_rounds

SIZES_MIB = (16, 128, 1024, 8192)
COUNTS = (1, 1_000, 10_000, 100_000)
BY_SIZE, BY_COUNT = (GROW_LOAD, GROW_SAVE), (GROW_LOAD_COUNT, GROW_SAVE_COUNT)
ROUNDS = 3
MIB = 1 << 20


@dataclass(frozen=True)
class Point:
    """One case at one size or number of tensors: a median over its rounds."""

    case: Case
    amount: int  # bytes, or tensors
    seconds: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True)
class Line:
    """seconds = fixed + slope * amount, as close to all points as their own sizes allow."""

    case: Case
    fixed_seconds: float
    slope: float  # seconds per byte, or per tensor

    @property
    def gib_per_second(self) -> float:
        return 1 / self.slope / model.GIB if self.slope > 0 else float("inf")

    @property
    def microseconds_each(self) -> float:
        return 1e6 * self.slope


def fit(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Least squares of relative errors, so that the smallest model counts as much as the largest.

    Gives (fixed, slope).
    """
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    together = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True))
    slope = together / spread if spread else 0.0
    return mean_y - slope * mean_x, slope


def lines(points: list[Point]) -> list[Line]:
    found = []
    for case in dict.fromkeys(point.case for point in points):
        own = [(float(point.amount), point.seconds) for point in points if point.case == case]
        if len(own) > 1:
            found.append(Line(case, *fit(own)))
    return found


def point_of(case: Case, amount: int, measurements: list[dict[str, Any]]) -> Point:
    seconds = [one["seconds"] for one in measurements]
    return Point(case, amount, median(seconds), min(seconds), max(seconds), len(seconds))


def sizes_for(gib: float, directory: Path) -> list[int]:
    """In MiB: up to four times the model, if the disk has room for two and memory for a copy and the page cache."""
    available = 1024 * int(machine.system_field("/proc/meminfo", "MemAvailable").split()[0])
    room = min(shutil.disk_usage(directory).free, available) // MIB
    return [mib for mib in SIZES_MIB if mib <= 4 * 1024 * gib and 2.4 * mib <= room]


def steps(gib: float, directory: Path) -> list[tuple[tuple[Race, ...], int, list[model.Tensor]]]:
    """What is measured: the races, the amount, and the tensors that are it."""
    by_size = [(BY_SIZE, mib * MIB, model.blocks(mib)) for mib in sizes_for(gib, directory)]
    return [*by_size, *((BY_COUNT, count, model.many_small(count)) for count in COUNTS)]


def cases_of(races: tuple[Race, ...]) -> list[Case]:
    return [case for case in all_cases() if case.race in races]


def run(setting: Setting, gib: float, rounds: int, seed: int) -> Iterator[tuple[Series, int, int, int]]:
    """Yields after each measurement its series, the amount, how many are done and how many there are."""
    todo = steps(gib, setting.directory)
    total = sum(rounds * len(cases_of(races)) for races, _, _ in todo)
    done = 0
    for races, amount, tensors in todo:
        file = setting.directory / "grown.safetensors"
        expected = model.ensure(file, tensors)
        here = replace(setting, extra={**setting.extra, "grown": Input(file, expected)})
        for series, _ in run_rounds(cases_of(races), here, rounds, seed):
            done += 1
            yield series, amount, done, total
        file.unlink()
