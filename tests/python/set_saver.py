"""Saves sets in processes that are killed: at a moment, or after a system call that changes or syncs something.

A process of its own, which forks without threads of torch or of the tests. It takes orders as lines of JSON and answers
each with one; see Order.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import penstock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "proof"))

from tracer import CALLS, Child


class Order(TypedDict):
    folder: str
    shapes: dict[str, list[int]]
    value: int  # of every element
    limit: int | None  # max_shard_size
    durable: bool
    source: str | None  # a file to convert; it is made for that
    kill_after: float | None  # seconds
    trace: bool
    kill_at: int | None  # with trace: after so many calls


class Answer(TypedDict):
    error: str | None
    killed: bool
    seconds: float
    calls: list[str]  # what was traced


def act(order: Order) -> None:
    target = Path(order["folder"]) / "model.safetensors"
    options: dict[str, Any] = {"max_shard_size": order["limit"], "durable": order["durable"]}
    if order["source"] is not None:
        penstock.convert(order["source"], target, overwrite=True, **options)
    else:
        penstock.save(make_state(order), target, **options)


def make_state(order: Order) -> dict[str, np.ndarray]:
    return {name: np.full(shape, order["value"], np.float32) for name, shape in order["shapes"].items()}


def obey(order: Order) -> Answer:
    if order["source"] is not None:
        penstock.save(make_state(order), order["source"], durable=False)
    child = Child(partial(act, order))
    if order["trace"]:
        run = child.trace(order["kill_at"], CALLS)
    elif order["kill_after"] is not None:
        run = child.kill_after(order["kill_after"])
    else:
        child.go()
        run = child.wait()
    error = None if run.killed or run.code == 0 else f"ended with {run.code}"
    return {"error": error, "killed": run.killed, "seconds": run.seconds, "calls": run.calls}


def main() -> None:
    for line in sys.stdin:
        try:
            answer = obey(json.loads(line))
        except OSError as error:
            answer = {"error": str(error), "killed": False, "seconds": 0, "calls": []}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
