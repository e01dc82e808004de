"""Forks a process whose threads load, save and stream all the while. Each child loads, saves, and exits in time.

    python proof/faults_forks.py --forks 1000

prints a line of JSON: how many children of each kind there were, and what was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import penstock

LIMIT = 180.0  # seconds for a child, of some milliseconds
MANY = 512 << 10

random = np.random.default_rng(5)
TENSORS: dict[str, Any] = {f"t{i}": random.integers(0, 256, MANY + i, dtype=np.uint8) for i in range(3)}


def load(path: Path) -> Any:
    return penstock.load(path, framework="numpy", cache="copy")


def is_right(found: Any) -> bool:
    return set(found) == set(TENSORS) and all(np.array_equal(found[name], TENSORS[name]) for name in TENSORS)


class Parent:
    """What its threads have under way, and what it holds itself when it forks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "model.safetensors"
        self.over = False
        self.reader = penstock.open(self.file, framework="numpy")
        self.works = (self.load, self.slice, self.save, self.save_set, self.stream)
        for work in self.works:  # what is imported late is imported now: that too can't be forked in the middle
            work(0)
        self.threads = [threading.Thread(target=self.repeat, args=(work,), daemon=True) for work in self.works]

    def repeat(self, work: Any) -> None:
        for turn in iter(int, 1):
            if self.over:
                return
            work(turn)

    def load(self, _: int) -> None:
        assert is_right(load(self.file))

    def slice(self, _: int) -> None:
        for begin in range(0, MANY, 200_000):
            assert np.array_equal(self.reader["t1"][begin : begin + 200_000], TENSORS["t1"][begin : begin + 200_000])

    def save(self, _: int) -> None:
        penstock.save(TENSORS, self.folder / "saved.flashpack", durable=False)

    def save_set(self, _: int) -> None:
        penstock.save(TENSORS, self.folder / "set.safetensors", max_shard_size=MANY, durable=False)

    def stream(self, _: int) -> None:
        assert is_right(dict(penstock.stream(self.file, framework="numpy", cache="copy")))


def use_own(parent: Parent, number: int) -> None:
    """A child's own loads and saves."""
    assert is_right(load(parent.file))
    path = parent.folder / f"child-{number % 2}.safetensors"
    penstock.save(TENSORS, path, durable=False)
    assert is_right(dict(penstock.stream(path, framework="numpy", cache="copy")))


def use_reader(parent: Parent, _: int) -> None:
    """The reader that the parent's threads read slices by."""
    parent.slice(0)
    penstock.save({"x": TENSORS["t0"]}, parent.folder / "set.safetensors", max_shard_size=MANY, durable=False)


def is_refused(use: Callable[[], object]) -> bool:
    try:
        use()
    except penstock.ArgumentError as problem:
        return "forked" in str(problem)
    return False


def drop_all(parent: Parent, _: int) -> None:
    """What the parent had begun is refused, and let go of."""
    assert is_refused(lambda: parent.job.wait(1)), "a child waits for a save of its parent"
    assert is_refused(lambda: dict(parent.begun)), "a child reads a stream of its parent"
    del parent.begun, parent.job
    assert is_right(load(parent.file))


CHILDREN = {"loads and saves": use_own, "uses the parent's reader": use_reader, "drops what was begun": drop_all}


def child(parent: Parent, number: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    list(CHILDREN.values())[number % len(CHILDREN)](parent, number)


def fork_once(parent: Parent, number: int) -> str:
    """What was wrong."""
    parent.begun = penstock.stream(parent.file, framework="numpy", cache="copy", max_buffer=1)
    next(iter(parent.begun))
    parent.job = penstock.save_async(TENSORS, parent.folder / "job.safetensors", durable=False)
    process = os.fork()
    if process == 0:
        child(parent, number)
        if number % 2 == 0:
            sys.exit(0)  # with all that Python does at its end
        os._exit(0)
    parent.job.wait()
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return "" if status == 0 else f"ends with {os.waitstatus_to_exitcode(status)}"
        time.sleep(0.001)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return "hung"


def main() -> int:
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # that is the point
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forks", type=int, default=300)
    forks = parser.parse_args().forks
    counts: Counter[str] = Counter()
    findings = []
    parent_process = os.getpid()
    folder = Path(tempfile.mkdtemp())
    try:
        penstock.save(TENSORS, folder / "model.safetensors")
        parent = Parent(folder)
        for thread in parent.threads:
            thread.start()
        for number in range(forks):
            kind = list(CHILDREN)[number % len(CHILDREN)]
            counts[kind] += 1
            if problem := fork_once(parent, number):
                findings.append(f"fork {number}, a child that {kind}: {problem}")
        if not all(thread.is_alive() for thread in parent.threads):
            findings.append("a thread of the parent ended")
        parent.over = True
        for thread in parent.threads:
            thread.join()
    finally:
        if os.getpid() == parent_process:
            shutil.rmtree(folder)
    print(json.dumps({"forks": counts, "findings": findings}))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
