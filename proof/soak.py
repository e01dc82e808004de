"""Hours of everything at once: loads, saves, streams, slices, cancels and forks from several threads of several
processes on the same files, with faults between them. No byte may be wrong; memory, descriptors, threads and files
stay flat.

    python proof/soak.py                the hour
    python proof/soak.py --minutes 10
    python proof/soak.py --short        25 seconds
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import record
import soak_work

# Between the rest after the warm-up and the last one, of each process.
MOST_GROWTH_MIB = 48.0
RESTS = 12
WARM_UP = 0.25  # of all rests
PATIENCE = 180.0
TMPFS_SIZE = "24m"


class Disk:
    """A filesystem that is soon full, where one can be mounted."""

    def __init__(self, folder: Path) -> None:
        self.folder: Path | None = folder
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_SIZE}", "tmpfs", str(folder)]
        mounted = subprocess.run(command, check=False, capture_output=True) if os.geteuid() == 0 else None
        if mounted is None or mounted.returncode != 0:
            print("no filesystem can be mounted here: none gets full", flush=True)
            self.folder = None

    def close(self) -> None:
        deadline = time.monotonic() + 30
        while self.folder is not None and time.monotonic() < deadline:
            if subprocess.run(["umount", str(self.folder)], check=False, capture_output=True).returncode == 0:
                return
            time.sleep(0.1)


def start(number: int, folder: Path, disk: Disk, seconds: float, given: argparse.Namespace) -> subprocess.Popen[str]:
    order = {
        "folder": str(folder),
        "disk": None if disk.folder is None else str(disk.folder),
        "seconds": seconds,
        "threads": given.threads,
        "rests": RESTS,
        "seed": given.seed + number,
        "forks": not given.no_forks,
        "name": f"p{number}",
    }
    program = Path(__file__).with_name("soak_work.py")
    return subprocess.Popen([sys.executable, program, json.dumps(order)], stdout=subprocess.PIPE, text=True)


def report_of(process: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"counts": {}, "rests": [], "findings": ["a process hung and was killed"]}
    if process.returncode != 0 or not text.strip():
        return {"counts": {}, "rests": [], "findings": [f"a process ended with {process.returncode}"]}
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def growth(rests: list[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """Of each measure: what it was after the warm-up, and at the end. Each is the median of three rests."""
    first = max(1, int(len(rests) * WARM_UP))
    if len(rests) < first + 4:
        return {}
    return {
        key: tuple(statistics.median(rest[key] for rest in part) for part in (rests[first : first + 3], rests[-3:]))  # type: ignore[misc]
        for key in rests[0]
    }


def leaks(name: str, rests: list[dict[str, float]]) -> list[str]:
    found = []
    for key, (before, after) in growth(rests).items():
        most = before + (MOST_GROWTH_MIB if key == "MiB" else 0)
        if after > most:
            found.append(f"{name}: {key} went from {before:.0f} to {after:.0f}")
    return found


def run(seconds: float, given: argparse.Namespace) -> tuple[Counter[str], list[dict[str, Any]], list[str]]:
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir=given.directory))
    disk = Disk(folder / "small")
    try:
        soak_work.prepare(folder)
        processes = [start(number, folder, disk, seconds, given) for number in range(given.processes)]
        deadline = time.monotonic() + seconds + PATIENCE
        reports = [report_of(process, max(1.0, deadline - time.monotonic())) for process in processes]
        findings = [each for report in reports for each in report["findings"]]
        for number, report in enumerate(reports):
            findings += leaks(f"process {number}", report["rests"])
        findings += soak_work.look_for_leftovers(folder)
        counts: Counter[str] = Counter()
        for report in reports:
            counts.update(report["counts"])
        return counts, reports, findings
    finally:
        disk.close()
        shutil.rmtree(folder, ignore_errors=True)


def show(counts: Counter[str], reports: list[dict[str, Any]], findings: list[str]) -> None:
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    for number, report in enumerate(reports):
        parts = [f"{key} {before:.0f} -> {after:.0f}" for key, (before, after) in growth(report["rests"]).items()]
        print(f"process {number}: {', '.join(parts) or 'too few rests to compare'}")
    for finding in findings:
        print(f"FOUND {finding}")
    print(f"{counts.total()} operations, {len(findings)} findings", flush=True)


def keep(counts: Counter[str], reports: list[dict[str, Any]], seconds: float) -> None:
    table: list[list[record.Cell]] = [[name, count, 0] for name, count in sorted(counts.items())]
    record.write(record.Record("soak", "Operations", ["what", "times", "wrong"], table, seconds))
    rows: list[list[record.Cell]] = []
    for number, report in enumerate(reports):
        change = growth(report["rests"])
        rows.append([f"process {number}", *(f"{before:.0f} → {after:.0f}" for before, after in change.values())])
    names = ["MiB of memory", "descriptors", "threads"]
    record.write(record.Record("soak-growth", "From the end of the warm-up to the end", ["", *names], rows, seconds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--short", action="store_true", help="25 seconds")
    parser.add_argument("--record", action="store_true", help="write the tables of docs/reliability.md")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--threads", type=int, default=4, help="of each process")
    parser.add_argument("--no-forks", action="store_true", help="nobody forks while other threads work")
    parser.add_argument(
        "--directory", type=Path, help="where the files are, instead of the system's for temporary ones"
    )
    given = parser.parse_args()
    seconds = 25.0 if given.short else given.minutes * 60
    started = time.monotonic()
    counts, reports, findings = run(seconds, given)
    show(counts, reports, findings)
    if given.record and not findings:
        keep(counts, reports, time.monotonic() - started)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
