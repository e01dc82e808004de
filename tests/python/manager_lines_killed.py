"""Kills a process at the lines that it runs of what CheckpointManager saves a step with, one after the other, each in a
fork of this one. What each death left is looked at, and the next step saved, in another fork.

manager_lines_killed.py DIRECTORY STRIDE: every so many-th line. Prints one line of JSON for each death.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import penstock
import torch
from manager_killed import Death

OLD, NEW = 3, 4


def state_of(step: int) -> dict[str, Any]:
    return {"weights.safetensors": {"w": torch.full((50, 30), float(step))}, "progress": {"step": step}, "x": step}


def manager_of(directory: Path) -> penstock.CheckpointManager:
    return penstock.CheckpointManager(directory, keep=2)


def begin(directory: Path) -> None:
    manager = manager_of(directory)
    for step in range(1, OLD + 1):
        manager.save(step, state_of(step))


def save(directory: Path, step: int) -> None:
    """In the background, and an old step goes."""
    manager = manager_of(directory)
    manager.save_async(step, state_of(step))
    manager.close()


def check(directory: Path) -> int:
    """Every step that is there is whole. Returns the latest."""
    manager = manager_of(directory)
    for step in manager.steps():
        saved = manager.restore(step, verify="if-any")
        assert saved is not None
        assert saved["progress"] == {"step": step}
        assert saved["x"] == step
        assert torch.equal(saved["weights.safetensors"]["w"], state_of(step)["weights.safetensors"]["w"])
    save(directory, NEW + 1)
    names = sorted(os.listdir(directory))
    latest = manager.steps()[-2]
    assert names == [f"step-{step:08}" for step in (latest, NEW + 1)], names
    return latest


def forked(call: Callable[[], int | None]) -> int:
    """What it returns; -1 where it was killed."""
    child = os.fork()
    if child == 0:
        code = 100
        try:
            code = call() or 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status >= 100:
        raise SystemExit("a fork failed")
    return max(status, -1)


def dying(directory: Path, line: int) -> None:
    death = Death(line)
    threading.settrace(death)
    sys.settrace(death)
    save(directory, NEW)
    sys.settrace(None)


def main(directory: Path, stride: int) -> None:
    forked(partial(begin, directory / "before"))
    line, ended = 1, -1
    while ended != 0:
        here = directory / str(line)
        shutil.copytree(directory / "before", here)
        ended = forked(partial(dying, here, line))
        latest = forked(partial(check, here))
        print(json.dumps({"line": line, "ended": ended == 0, "latest": latest}), flush=True)
        shutil.rmtree(here)
        line += stride


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
