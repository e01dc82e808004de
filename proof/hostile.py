"""Files made to attack whoever reads them. Each must be refused, or read harmlessly: quickly, in little memory, without
executing or importing anything, opening a file outside of its directory, or leaving anything behind.

    python proof/hostile.py                 all of them, by Python and by the command
    python proof/hostile.py --family seals  some of them
    python proof/hostile.py --short         every tenth, and no large ones
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import hostile_blowups
import hostile_directories
import hostile_headers
import hostile_pickles
import hostile_runs
import hostile_zips
import record
from hostile_case import GOOD_SAFETENSORS, Case, Family
from hostile_runs import Command, Run, Watch

FAMILIES: dict[str, Family] = {
    **hostile_pickles.FAMILIES,
    **hostile_zips.FAMILIES,
    **hostile_headers.FAMILIES,
    **hostile_directories.FAMILIES,
    **hostile_blowups.FAMILIES,
}

# What a file may take above a good one of a few bytes, whatever its size is, and by its size where it is large.
MOST_MILLISECONDS = 100.0
MOST_MIB = 64.0
MILLISECONDS_PER_MIB = 100.0
TIMES_ITS_SIZE = 24.0
TIMES_AS_OBJECTS = 128.0  # trees and lists in Python: an object of each value, of which a byte can make one
COMMAND = "penstock "  # what the names of its actions begin with; the others are Python's
ATTEMPTS = 3  # the least of them counts: others use the machine too

SHORT_STEP = 12
SHORT_WITHOUT = (
    "large and sound",
    "blow-ups in pickles",
    "blow-ups in headers",
    "blow-ups in directories",
    "deflate bombs",
)


@dataclass
class Row:
    files: int = 0
    runs: int = 0
    refused: int = 0
    milliseconds: float = 0.0
    mib: float = 0.0
    slowest: str = ""
    largest: str = ""
    findings: list[str] = field(default_factory=list)

    def add(self, case: Case, run: Run) -> None:
        self.runs += 1
        self.refused += run.outcome == "refused"
        if run.milliseconds > self.milliseconds:
            self.milliseconds, self.slowest = run.milliseconds, f"{case.name}: {run.action}"
        if run.mib > self.mib:
            self.mib, self.largest = run.mib, f"{case.name}: {run.action}"


def size_of(path: Path) -> int:
    if not path.is_dir() or path.is_symlink():
        return path.lstat().st_size
    return sum(each.lstat().st_size for each in path.iterdir())


def problems(case: Case, run: Run) -> list[str]:
    """What is wrong with a run, but for its time and memory."""
    if run.outcome not in ("refused", "read"):
        return [f"{case.name}: {run.action}: {run.outcome}"]
    if run.outcome == "read" and not case.sound:
        return [f"{case.name}: {run.action}: was read"]
    return []


class Trial:
    """The directories of a run, the watch over what is outside, and the command."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        self._given = given
        self._outside = folder / "outside"
        self._outside.mkdir()
        (self._outside / "secret.safetensors").write_bytes(GOOD_SAFETENSORS)
        self._out = folder / "out"
        good = hostile_runs.warm_up(folder / "good")
        self._command = Command(given.program, good)
        self._watch = Watch(self._outside)

    def close(self) -> None:
        self._command.close()
        self._watch.close()

    def attack(self, case: Case, row: Row) -> None:
        size = size_of(case.path)
        before = names_below(case.path)
        row.files += 1
        runs = self._once(case)
        for run in runs:
            row.findings += problems(case, run)
        for _ in range(ATTEMPTS - 1):
            if not any(self.excesses(case, run, size) for run in runs):
                break
            again = self._once(case)
            runs = [least(run, other) for run, other in zip(runs, again, strict=False)]
        for run in runs:
            row.add(case, run)
            row.findings += self.excesses(case, run, size)
        if self._given.verbose:
            worst = max(runs, key=lambda run: run.milliseconds), max(runs, key=lambda run: run.mib)
            print(f"  {case.name}: {size} bytes, {worst[0].milliseconds:.0f} ms ({worst[0].action}), "
                  f"{worst[1].mib:.1f} MiB ({worst[1].action})", flush=True)  # fmt: skip
        if names_below(case.path) != before:
            row.findings.append(f"{case.name}: left {names_below(case.path) - before}")

    def excesses(self, case: Case, run: Run, size: int) -> list[str]:
        """Of time and memory."""
        found = []
        mib = size / hostile_runs.MIB
        if not self._given.patient and run.milliseconds > MOST_MILLISECONDS + mib * MILLISECONDS_PER_MIB:
            found.append(f"{case.name}: {run.action}: {run.milliseconds:.0f} ms ({mib:.1f} MiB)")
        times = TIMES_ITS_SIZE if run.action.startswith(COMMAND) else TIMES_AS_OBJECTS
        if run.mib > MOST_MIB + mib * times:
            found.append(f"{case.name}: {run.action}: {run.mib:.0f} MiB of memory ({mib:.1f} MiB)")
        return found

    def _once(self, case: Case) -> list[Run]:
        found = []
        for number, runs in enumerate((hostile_runs.by_python, self._command.runs)):
            shutil.rmtree(self._out, ignore_errors=True)
            self._out.mkdir()
            found += runs(case.path, self._out / "new.safetensors")
            left = {each for each in os.listdir(self._out) if not each.startswith("new.safetensors")}
            seen = [*(f"left {each}" for each in left), *(f"went outside: {each}" for each in self._watch.events())]
            if seen:
                found.append(Run(("python", "command")[number], ", ".join(seen[:3]), 0, 0))
        return found


def least(run: Run, other: Run) -> Run:
    if run.action != other.action:
        return run
    return Run(run.action, run.outcome, min(run.milliseconds, other.milliseconds), min(run.mib, other.mib))


def names_below(path: Path) -> set[str]:
    folder = path if path.is_dir() and not path.is_symlink() else path.parent
    return set(os.listdir(folder))


def attack_family(trial: Trial, name: str, folder: Path, step: int) -> Row:
    """Files are made one by one: nothing of a family is needed twice."""
    row = Row()
    folder.mkdir(parents=True)
    here = os.getcwd()
    os.chdir(folder)
    try:
        for number, case in enumerate(FAMILIES[name](folder)):
            if number % step == 0:
                trial.attack(case, row)
            if case.path.is_file() and not case.path.is_symlink():
                case.path.unlink()
    finally:
        os.chdir(here)
        shutil.rmtree(folder)
    return row


def run(steps: dict[str, int], given: argparse.Namespace) -> dict[str, Row]:
    rows = {}
    # In memory, where there is such a filesystem: conversions are synced.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="hostile-", dir=memory) as name:
        trial = Trial(Path(name), given)
        try:
            for family, step in steps.items():
                started = time.monotonic()
                row = rows[family] = attack_family(trial, family, Path(name) / "inside", step)
                worst = f"{row.milliseconds:.0f} ms ({row.slowest}), {row.mib:.1f} MiB ({row.largest})"
                counts = f"{row.files} files, {row.runs} runs, {row.refused} refused"
                print(f"{family}: {counts}, {worst}, {time.monotonic() - started:.0f} s", flush=True)
                for finding in row.findings:
                    print(f"  FOUND {finding}", flush=True)
        finally:
            trial.close()
    return rows


def keep(rows: dict[str, Row], seconds: float) -> None:
    table = [
        [name, row.files, row.runs, row.refused, round(row.milliseconds), round(row.mib)] for name, row in rows.items()
    ]
    columns = ["family", "files", "reads", "of these refused", "slowest, ms", "most memory, MiB"]
    record.write(record.Record("hostile", "Hostile files", columns, table, seconds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="a sample of them")
    parser.add_argument("--record", action="store_true", help="write the table of docs/reliability.md")
    parser.add_argument("--family", action="append", choices=sorted(FAMILIES), help="only these")
    parser.add_argument("--step", action="append", type=int, help="of each of these families every so many-th file")
    parser.add_argument("--patient", action="store_true", help="any time will do: on a machine that is busy")
    parser.add_argument("--verbose", action="store_true", help="each file")
    parser.add_argument("--program", type=Path, default=Path(sys.executable).with_name("penstock"), help="the command")
    given = parser.parse_args()
    families = given.family or [name for name in FAMILIES if not (given.short and name in SHORT_WITHOUT)]
    default = SHORT_STEP if given.short else 1
    steps = dict(zip(families, given.step or [default] * len(families), strict=True))
    started = time.monotonic()
    rows = run(steps, given)
    findings = sum(len(row.findings) for row in rows.values())
    files, reads = (sum(getattr(row, what) for row in rows.values()) for what in ("files", "runs"))
    print(f"{files} files, {reads} reads, {findings} findings")
    if given.record and not findings:
        keep(rows, time.monotonic() - started)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
