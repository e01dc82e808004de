"""Loads to and saves from a simulated device, beside the host and the model of bench/pipeline.py, in one run.

    scripts/build_native.sh release                            # the programs and the simulated driver
    bench/device_race.py                                       # 2 GiB, 5 rounds
    bench/device_race.py --baseline OTHER/.venv/bin/python     # also the host's loads and saves, beside another build

The drive is as fast as it is: its rate is measured first, and links are given in multiples of it. To see another drive,
one request is made at a time. Cold files, fresh processes, rounds in random order: see README.md.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import pipeline
import programs
import race
import run_results
from cases import Case
from cases import device_cases as devices
from runner import MeasurementError, Series, Setting
from summary import summarise

MIB = 1 << 20
COPY_LATENCY = 50e-6  # of the simulated device: a thread has to wake up
ROUNDS_OF_DRIVE = 3  # before the others


@dataclass(frozen=True)
class Figure:
    """Something that is promised of devices."""

    text: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True)
class Prediction:
    """What the model says of a case, in bytes per second, and what was measured."""

    case: Case
    predicted: float
    measured: float


class Measurements:
    """What was measured, by case."""

    def __init__(self, series: list[Series]) -> None:
        self._results = {one.case.key: one.results for one in series}

    def has(self, *cases: Case) -> bool:
        return all(self._results.get(case.key) for case in cases)

    def median(self, case: Case, value: str | Callable[[dict[str, Any]], float]) -> float:
        get = value if callable(value) else lambda result: float(result[value])
        return median(get(result) for result in self._results[case.key])

    def highest(self, case: Case, name: str) -> float:
        return max(float(result[name]) for result in self._results[case.key])

    def rate(self, case: Case) -> float:
        """Bytes per second."""
        return self.median(case, lambda result: result["bytes"] / result["seconds"])


def figures_of(measured: Measurements) -> list[Figure]:
    found = []
    fast, slow = devices.TO_DEVICE[2.0], devices.TO_DEVICE[0.5]
    if measured.has(fast, devices.HOST):
        found += [
            Figure(
                "link 2 x drive: speed over the host", measured.rate(fast) / measured.rate(devices.HOST), 0.95, True
            ),
            Figure(
                "link 2 x drive: processor time over the host",
                measured.median(fast, "cpu_seconds") / measured.median(devices.HOST, "cpu_seconds"),
                1.15,
            ),
        ]
    if measured.has(slow):
        link = 0.5 * devices.measured.drive
        found.append(Figure("link 0.5 x drive: speed over the link", measured.rate(slow) / link, 0.95, True))
    loads = [case for case in (*devices.TO_DEVICE.values(), devices.FIRST) if measured.has(case)]
    for text, name, limit in (
        ("pageable copies", "pageable_copies", 0),
        ("violations", "violations", 0),
        ("pinned memory, MiB", "pinned_bytes_peak", 48 * MIB),
    ):
        unit = MIB if limit else 1
        found += (
            [Figure(text, max(measured.highest(case, name) for case in loads) / unit, limit / unit)] if loads else []
        )
    if measured.has(devices.FIRST):
        growth = [measured.highest(devices.FIRST, f"peak_{kind}_bytes") for kind in ("anonymous", "file")]
        found.append(Figure("host memory of a first load, MiB", sum(growth) / MIB, 64))
    if measured.has(devices.PURE_COPY, devices.HELD):
        held = measured.median(devices.HELD, "seconds") / measured.median(devices.PURE_COPY, "seconds")
        found.append(Figure("save_async: time until staged over the pure copy", held, 1.1))
    for now, before in zip(devices.NOW, devices.BEFORE, strict=True):
        if measured.has(now, before):
            ratio = measured.median(before, "seconds") / measured.median(now, "seconds")
            found.append(Figure(f"host, {now.race.name}: speed over before", ratio, 0.95, True))
    return found


def predictions_of(measured: Measurements) -> list[Prediction]:
    """The model has the drive's rate and latency from reads alone: many at a time, and one by one."""
    if not measured.has(devices.DRIVE, devices.DRIVE_ONE):
        return []
    drive, block = measured.rate(devices.DRIVE), pipeline.Pipeline.block
    latency = max(0.0, block / measured.rate(devices.DRIVE_ONE) - block / drive)
    model = pipeline.Pipeline(drive, drive, drive_latency=latency, copy_latency=COPY_LATENCY)
    models = {case: replace(model, link=link * devices.measured.drive) for link, case in devices.TO_DEVICE.items()}
    models[devices.ONE_BLOCK] = replace(models[devices.TO_DEVICE[2.0]], slots=1)
    return [
        Prediction(case, rate_of_load(model, measured.median(case, "bytes")), measured.rate(case))
        for case, model in models.items()
        if measured.has(case)
    ]


def rate_of_load(model: pipeline.Pipeline, nbytes: float) -> float:
    """Filling and draining the pipeline included."""
    return nbytes / pipeline.simulate(model, max(1, round(nbytes / model.block)))[-1]


def show(series: list[Series], figures: list[Figure], predictions: list[Prediction]) -> None:
    print(f"\n{'case':60} {'median':>9} {'range':>19}  {'CPU s':>6}")
    for one in map(summarise, series):
        unit, cpu = one.case.race.unit, f"{one.cpu_seconds:6.2f}" if one.cpu_seconds is not None else ""
        print(f"{one.case.key:60} {one.value:9.2f} {one.low:8.2f} - {one.high:8.2f}  {cpu}  {unit}")
    if predictions:
        print(f"\n{'GB/s':60} {'model':>9} {'measured':>9} {'ratio':>6}")
    for prediction in predictions:
        model, measured = prediction.predicted / pipeline.GB, prediction.measured / pipeline.GB
        print(f"{prediction.case.name:60} {model:9.2f} {measured:9.2f} {measured / model:6.2f}")
    print(f"\n{'figure':60} {'measured':>9} {'limit':>9}")
    for figure in figures:
        bound = f"{'>=' if figure.at_least else '<='} {figure.limit:g}"
        print(f"{figure.text:60} {figure.value:9.2f} {bound:>9}  {'holds' if figure.holds else 'MISSED'}")


def as_json(about: dict[str, Any], series: list[Series], figures: list[Figure], predictions: list[Prediction]) -> Any:
    return {
        "about": {**about, "drive_bytes_per_second": devices.measured.drive, "drive_is_limited": False},
        "cases": [run_results.case_as_json(one, summarise(one)) for one in series],
        "figures": [
            {"text": one.text, "measured": one.value, "limit": one.limit, "at_least": one.at_least, "holds": one.holds}
            for one in figures
        ],
        "model": [
            {"case": one.case.key, "bytes_per_second": one.predicted, "measured": one.measured} for one in predictions
        ],
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=2.0, metavar="GIB", help="size of the model (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements per case (default: 5)")
    parser.add_argument("--baseline", default="", metavar="PYTHON", help="that has another build of penstock")
    parser.add_argument("--directory", type=Path, default=race.ROOT / "results" / "data", help="where the files are")
    parser.add_argument("--idle", type=float, default=1.0, metavar="SECONDS", help="least rest before each start")
    parser.add_argument("--drop", choices=["file", "everything"], default="file", help="as for race.py")
    parser.add_argument("--memory", choices=["as-it-is", "at-hand"], default="as-it-is", help="as for race.py")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="of the random order")
    parser.add_argument("--python", default=sys.executable, help="that has penstock (default: this one)")
    parser.add_argument("--only", default="", metavar="REGEX", help="only cases that match, as in 'device-load'")
    arguments = parser.parse_args()
    arguments.peer_python = arguments.baseline or arguments.python
    return arguments


def require_programs() -> None:
    for path in (programs.FOLDER / "device_bench", devices.simulator()):
        if not path.exists():
            raise SystemExit(f"[bench] {path} is missing; scripts/build_native.sh release builds it")


def measure_drive(setting: Setting, seed: int) -> float:
    found: dict[str, Series] = {}
    race.run([devices.DRIVE], setting, ROUNDS_OF_DRIVE, seed, None, found)
    return Measurements(list(found.values())).rate(devices.DRIVE)


def main() -> int:
    arguments = parse_arguments()
    require_programs()
    cases = [*devices.DEVICE_CASES, *(devices.NOW + devices.BEFORE if arguments.baseline else [])]
    cases = [case for case in cases if re.search(arguments.only, case.key)]
    left_out: dict[str, str] = {}
    found: dict[str, Series] = {}
    try:
        setting = race.prepare(cases, arguments, arguments.size)
        about = race.describe(setting, arguments, arguments.rounds)
        devices.measured.drive = measure_drive(setting, arguments.seed)
        print(f"[bench] drive: {devices.measured.drive / pipeline.GB:.2f} GB/s; links are multiples of it")
        race.run(cases, setting, arguments.rounds, arguments.seed, left_out, found)
    except MeasurementError as error:
        print(f"[bench] FAILED: {error}", file=sys.stderr)
        return 1
    series = list(found.values())
    figures, predictions = figures_of(Measurements(series)), predictions_of(Measurements(series))
    show(series, figures, predictions)
    path = race.ROOT / "results" / time.strftime("device-%Y%m%d-%H%M%S.json")
    run_results.write(path, as_json({**about, "left_out": left_out}, series, figures, predictions))
    print(f"[bench] every measurement: {path.relative_to(race.ROOT)}")
    return 0 if not left_out and all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
