"""Savers and loaders with a bug each, given to the harness of proof/faults.py: prints what it finds, as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "proof"))

import faults
import faults_cases
import numpy as np
import penstock
from faults_cases import NEW, OLD, Case
from faults_inject import Fault

OPENED: list[int] = []


def raw(state: dict[str, Any]) -> bytes:
    return state["a"].tobytes()


def save(
    folder: Path,
    *,
    in_place: bool = False,
    sync: bool = True,
    tidy: bool = True,
    closes: bool = True,
    again: bool = False,
) -> None:
    """What a careful saver does, and each of its bugs."""
    target = folder / "m.raw"
    path = target if in_place else folder / ".m.tmp"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        while True:
            try:
                os.write(file, raw(NEW))
                break
            except OSError:
                if not again:
                    raise
        try:
            os.fsync(file)
        except OSError:
            if sync:
                raise
        if not in_place:
            os.rename(path, target)
    except OSError as problem:
        if not in_place and tidy:
            path.unlink()
        raise penstock.IoError(f"{target}: {problem.strerror}") from None
    finally:
        if closes:
            os.close(file)
        else:
            OPENED.append(file)


def hang(folder: Path) -> None:
    try:
        save(folder)
    except penstock.Error:
        time.sleep(1000)


def load(folder: Path) -> Any:
    """Does not look at how much it was given."""
    data = bytearray(len(raw(OLD)))
    file = os.open(folder / "m.raw", os.O_RDONLY)
    os.readv(file, [data])
    os.close(file)
    return {**OLD, "a": np.frombuffer(data, np.uint8)}


def prepare(folder: Path) -> None:
    (folder / "m.raw").write_bytes(raw(OLD))


def reload(folder: Path) -> Any:
    text = (folder / "m.raw").read_bytes()
    return next((state for state in (OLD, NEW) if raw(state) == text), {})


def saver(name: str, act: Callable[[Path], object]) -> Case:
    return Case(name, prepare, act, reload)


PLANTED = [
    (saver("a careful saver", save), Fault("fsync", 0, "EIO")),
    (saver("ignores a sync", lambda folder: save(folder, sync=False)), Fault("fsync", 0, "EIO")),
    (saver("ignores a short write", save), Fault("write", 0, "short")),
    (saver("writes in place", lambda folder: save(folder, in_place=True)), Fault("write", 0, "torn")),
    (saver("leaves its file", lambda folder: save(folder, tidy=False)), Fault("write", 0, "ENOSPC")),
    (saver("leaves a descriptor", lambda folder: save(folder, closes=False)), Fault("write", 0, "EIO")),
    (saver("hangs", hang), Fault("write", 0, "EIO")),
    (Case("ignores a short read", prepare, load), Fault("readv", 0, "short")),
    (Case("tells no file", prepare, load), Fault("openat", 0, "EIO")),
]


def main() -> None:
    os.environ["PENSTOCK_BACKEND"] = "threads"
    faults.LIMIT = 20.0
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (case, fault) in enumerate(PLANTED):
            counts = faults.Counts()
            round_ = faults.Round(case, Path(folder) / str(number))
            round_.usual = dict.fromkeys(faults_cases._footprint(), 0)
            faults.judge(round_, fault, counts)
            found[case.name] = [line.rpartition(": ")[2] for line in counts.findings]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
