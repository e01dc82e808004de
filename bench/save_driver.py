"""What the save benchmarks share: their options, a fresh process for every row, and the lines they print.

    test_penstock_save -- 14.23 GB,  7.10 secs,  2.00 GB/s

A GB has 2**30 bytes, and the bytes are those of the file.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from machine import system_field
from runner import find_peer_python
from save_rows import Measured, Order, Row

BENCH = Path(__file__).resolve().parent
GIB = 1 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, required=True, help="where the files go; they are removed again")
    parser.add_argument("--zipfile", action="store_true", help="torch's zip format")
    parser.add_argument("--legacy", action="store_true", help="its legacy format; with --zipfile, one after the other")
    parser.add_argument("--gpu", action="store_true", help="tensors in GPU memory")
    parser.add_argument(
        "--io_buffer_mb", type=int, default=64, help="staging memory of the writers, MB (default: %(default)s)"
    )
    parser.add_argument("--single_io_buffer", action="store_true", help="one buffer, not filled while it is written")
    parser.add_argument("--no-statistics", action="store_true", help="don't print what the writers counted")
    parser.add_argument("--rounds", type=int, default=1, help="in random order; medians are printed (default: 1)")
    parser.add_argument("--idle", type=float, default=1.0, metavar="SECONDS", help="rest before each row (default: 1)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows whose name has it")
    parser.add_argument("--python", default=sys.executable, help="that has penstock (default: this one)")
    parser.add_argument(
        "--peer-python", default=find_peer_python(BENCH.parent), help="that has deepspeed (default: .venv-bench)"
    )


def check_arguments(arguments: argparse.Namespace, nbytes: int) -> None:
    """Refuses what can't work before anything is made."""
    if not arguments.folder.is_dir():
        raise SystemExit(f"{arguments.folder} is not a folder")
    available = 1024 * int(system_field("/proc/meminfo", "MemAvailable").split()[0])
    if 2.2 * nbytes > available:  # the checkpoint, and what is loaded to compare it
        raise SystemExit(
            f"a checkpoint of {nbytes / GIB:.1f} GB needs {2.2 * nbytes / GIB:.1f} GB of memory, and there are "
            f"{available / GIB:.1f}: --half or --scale make it smaller"
        )
    if arguments.gpu:
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("--gpu needs a GPU that torch can use")


def formats(arguments: argparse.Namespace, default_is_zip: bool = False) -> list[bool]:
    """Whether each of the runs is of zips."""
    if arguments.zipfile and arguments.legacy:
        return [True, False]
    return [arguments.zipfile or (default_is_zip and not arguments.legacy)]


def order_from(arguments: argparse.Namespace) -> Order:
    """All but the row, the path and the format."""
    return Order(
        tag="",
        path="",
        zipped=True,
        model=getattr(arguments, "model", ""),
        tensor_mb=getattr(arguments, "mb_size", 0),
        scale=getattr(arguments, "scale", 1.0),
        half=getattr(arguments, "half", False),
        optimizer=getattr(arguments, "optimizer", False),
        gpu=arguments.gpu,
        io_buffer_mb=arguments.io_buffer_mb,
        single_io_buffer=arguments.single_io_buffer,
        statistics=not arguments.no_statistics,
    )


def python_for(row: Row, arguments: argparse.Namespace) -> str:
    python: str = arguments.python if row.role == "ours" else arguments.peer_python
    return python


def runnable(rows: dict[str, Row], arguments: argparse.Namespace) -> dict[str, Row]:
    """The rows to run; says aloud which can't."""
    chosen = {tag: row for tag, row in rows.items() if arguments.only in tag}
    problems: dict[str, str] = {}
    for tag, row in list(chosen.items()):
        if row.needs and row.needs not in problems:
            command = [python_for(row, arguments), "-c", row.needs]
            tried = subprocess.run(command, cwd=BENCH, capture_output=True, text=True)
            problems[row.needs] = tried.stderr.strip().splitlines()[-1] if tried.returncode else ""
        if row.needs and problems[row.needs]:
            print(f"{tag} -- left out: {problems[row.needs]}")
            del chosen[tag]
    return chosen


def run_row(row: Row, order: Order, arguments: argparse.Namespace) -> Measured:
    """One measurement in a process and a folder of its own."""
    time.sleep(arguments.idle)
    with tempfile.TemporaryDirectory(prefix=f"{order.tag}-", dir=arguments.folder) as folder:
        order = replace(order, path=str(Path(folder) / "checkpoint.pt"))
        command = [python_for(row, arguments), str(BENCH / "save_rows.py"), json.dumps(asdict(order))]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if ended.returncode != 0:
        raise SystemExit(f"{order.tag} -- FAILED with exit code {ended.returncode}")
    return Measured(**json.loads(ended.stdout.strip().splitlines()[-1]))


def line(tag: str, row: Row, measurements: Iterable[Measured]) -> str:
    measurements = list(measurements)
    gb, seconds = measurements[0].nbytes / GIB, median(one.seconds for one in measurements)
    text = f"{tag} -- {gb:5.2f} GB, {seconds:5.2f} secs, {gb / seconds:5.2f} GB/s"
    return text if row.writes else f"{text} (nothing written)"


def run(rows: dict[str, Row], arguments: argparse.Namespace, zipped: bool) -> None:
    """Every row once per round, then a line for each."""
    print(f"{'zip' if zipped else 'legacy'} format, every file synced and verified by loading")
    base = replace(order_from(arguments), zipped=zipped)
    measured: dict[str, list[Measured]] = {tag: [] for tag in rows}
    for number in range(arguments.rounds):
        for tag in random.sample(list(rows), len(rows)) if arguments.rounds > 1 else rows:
            measured[tag].append(run_row(rows[tag], replace(base, tag=tag), arguments))
            if number == arguments.rounds - 1 and arguments.rounds == 1:
                print(line(tag, rows[tag], measured[tag]), flush=True)
    if arguments.rounds > 1:
        for tag, row in rows.items():
            print(line(tag, row, measured[tag]))
