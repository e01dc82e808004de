"""One of two ranks of a scene in test_fastpersist_tags.py: `python tags_rank.py RANK DIRECTORY SCENE`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from penstock import Error
from penstock.fastpersist._deepspeed_engine import DeepSpeedCheckpointEngine
from test_fastpersist_tags import Info

rank, directory, scene = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", rank=rank, world_size=2)
engine = DeepSpeedCheckpointEngine({"checkpoint": {"writer": {"decoupled": scene == "exit"}}}, True, timeout=30)


def save(tag: str, folder: Path = directory, before_commit: Any = None) -> None:
    info = Info(tag, str(folder), False)
    with engine.saving(True):
        engine.create(info)
        engine.makedirs(folder / tag, exist_ok=True)
        path = folder / tag / f"rank_{rank}_states.pt"
        if before_commit is not None:
            before_commit(path)
        engine.save({"x": torch.full((1000,), rank)}, path)
        if not engine.is_decoupled():
            engine.commit(info)


def fail(path: Path) -> None:
    if rank == 1:
        engine.makedirs(path)  # there can be no file of that name


def kill(path: Path) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def saying(call: Any) -> str:
    try:
        call()
    except Error as problem:
        return str(problem)
    return ""


outcome: Any = None
if scene == "slow":
    save("a", before_commit=lambda path: time.sleep(rank))
    outcome = [f"rank_{each}" for each in range(2) if (directory / "a" / f"rank_{each}_states.pt").exists()]
elif scene in ("failing", "dying"):
    save("a")
    outcome = saying(lambda: save("b", before_commit=fail if scene == "failing" else kill))
elif scene == "tags":
    outcome = saying(lambda: save(f"a{rank}"))
elif scene == "directories":
    (directory / str(rank)).mkdir()
    outcome = saying(lambda: save("a", directory / str(rank)))
else:
    save("a")
print(json.dumps(outcome), flush=True)
if scene != "exit":
    os._exit(0)  # a group with a dead member can't be left in order
dist.destroy_process_group()
