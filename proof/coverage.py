"""Counts the lines and branches that the tests reach, in a build of its own, as a table per layer.

    python proof/coverage.py                        the C++ tests
    python proof/coverage.py --python               the Python tests too: half an hour
    python proof/coverage.py --missing src/format   what is not reached there

A page per source is in build/coverage/html. What dies by a signal, as some tests want of their children, leaves no
counts behind, and neither does what ends in _exit(): the real figures are a little higher.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import record

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "coverage"
RAW = BUILD / "raw"
PROGRAMS = ("base", "io", "memory", "format", "plan", "transfer", "device", "api")
IGNORED = r"(_test\.cc|src/testing/|tests/|/usr/)"


def program_of(layer: str) -> Path:
    return BUILD / "src" / "testing" / f"penstock_{layer}_test"


def run_programs(layers: list[str]) -> None:
    targets = [f"penstock_{layer}_test" for layer in layers]
    subprocess.run([ROOT / "scripts" / "build_native.sh", "coverage", *targets], check=True)
    RAW.mkdir(exist_ok=True)
    for old in RAW.glob("*.profraw"):
        old.unlink()
    for layer in layers:
        environment = {**os.environ, "LLVM_PROFILE_FILE": f"{RAW}/{layer}-%p.profraw"}
        command = [program_of(layer), "--gtest_brief=1"]
        result = subprocess.run(command, env=environment, cwd=BUILD, check=False, capture_output=True, text=True)
        last = result.stdout.strip().splitlines()[-1:] or [f"exit code {result.returncode}"]
        print(f"[coverage] {layer}: {last[0]}", flush=True)


def cov(layers: list[str], *arguments: str) -> str:
    profile = BUILD / "all.profdata"
    programs = [str(program_of(layer)) for layer in layers]
    objects = [programs[0], *(part for program in programs[1:] for part in ("-object", program))]
    command = ["llvm-cov", *arguments, f"-instr-profile={profile}", f"-ignore-filename-regex={IGNORED}", *objects]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def collect(layers: list[str]) -> list[dict[str, Any]]:
    """What llvm-cov says of each source."""
    raw = [str(path) for path in RAW.glob("*.profraw") if path.stat().st_size > 0]
    merge = ["llvm-profdata", "merge", "-sparse", "-failure-mode=all", "-o", str(BUILD / "all.profdata"), *raw]
    subprocess.run(merge, check=True, capture_output=True)
    cov(layers, "show", "-format=html", "-show-branches=count", f"-output-dir={BUILD}/html")
    files: list[dict[str, Any]] = json.loads(cov(layers, "export"))["data"][0]["files"]
    return [file for file in files if file["filename"].startswith(str(ROOT))]


def layer_of(path: str) -> str:
    parts = Path(path).relative_to(ROOT).parts
    return "/".join(parts[:3] if parts[:2] == ("src", "api") and len(parts) > 3 else parts[:2])


def rows_of(files: list[dict[str, Any]]) -> list[list[record.Cell]]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for file in files:
        row, summary = sums[layer_of(file["filename"])], file["summary"]
        for place, kind in ((0, "lines"), (2, "branches")):
            row[place] += summary[kind]["count"]
            row[place + 1] += summary[kind]["covered"]
    return [[f"`{name}`", *shares(*numbers)] for name, numbers in sorted(sums.items())]


def shares(lines: int, lines_reached: int, branches: int, branches_reached: int) -> list[record.Cell]:
    def share(part: int, whole: int) -> str:
        return f"{100 * part / whole:.1f}%" if whole else ""

    return [lines, share(lines_reached, lines), branches, share(branches_reached, branches)]


def missing(files: list[dict[str, Any]], folder: str) -> Iterator[str]:
    """`src/format/zip.cc:12: never true: if (a) ...`"""
    for file in files:
        name = str(Path(file["filename"]).relative_to(ROOT))
        if not name.startswith(folder):
            continue
        source = Path(file["filename"]).read_text().splitlines()
        for line, _, _, _, true, false, *_ in file["branches"]:
            what = "never reached" if true == 0 and false == 0 else "never true" if true == 0 else "never false"
            if true == 0 or false == 0:
                yield f"{name}:{line}: {what}: {source[line - 1].strip()}"


def python_rows() -> list[list[record.Cell]]:
    """Of the tests in tests/python, run with coverage.py."""
    data = BUILD / "python.json"
    environment = {**os.environ, "COVERAGE_FILE": str(BUILD / "python.data")}
    python = [sys.executable, "-m", "coverage"]
    command = [*python, "run", "--branch", "--source=penstock", "-m", "pytest", "-q", "tests/python"]
    subprocess.run(command, cwd=ROOT, env=environment, check=False)
    subprocess.run([*python, "json", "-q", "-o", str(data)], cwd=ROOT, env=environment, check=True)
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for name, file in json.loads(data.read_text())["files"].items():
        below = name.split("penstock/")[-1].split("/")
        summary = file["summary"]
        for place, key in enumerate(("num_statements", "covered_lines", "num_branches", "covered_branches")):
            sums["penstock." + below[0] if len(below) > 1 else "penstock"][place] += summary[key]
    return [[f"`{name}`", *shares(*numbers)] for name, numbers in sorted(sums.items())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", default=",".join(PROGRAMS), help="whose tests are run (default: %(default)s)")
    parser.add_argument("--python", action="store_true", help="the Python tests too")
    parser.add_argument("--missing", metavar="FOLDER", help="list what is not reached in it")
    parser.add_argument("--record", action="store_true", help="write the table of docs/reliability.md")
    arguments = parser.parse_args()
    layers = arguments.layers.split(",")
    begin = time.monotonic()
    run_programs(layers)
    files = collect(layers)
    rows = rows_of(files) + (python_rows() if arguments.python else [])
    columns = ["folder", "lines", "reached", "branches", "taken"]
    result = record.Record("coverage", "Coverage by the tests", columns, rows, time.monotonic() - begin)
    print(record.as_markdown(result))
    if arguments.missing:
        print("\n".join(missing(files, arguments.missing)))
    if arguments.record:
        record.write(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
