"""For test_accelerate_sets.py: saves of a model over another one that are killed, each in a fork of this process.

    accelerate_killed.py FOLDER

Every model has one value in all its weights. Prints a line of JSON for each kill: where it was, and the values of the
model before, of the one that was being saved, and of the one that transformers load afterwards by themselves.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
import tiny_models
import torch
from penstock import _core
from penstock._accelerate import _save_sets
from transformers import LlamaForCausalLM

MODEL = tiny_models.llama()


class Steps:
    """Dies at the beginning or at the end of a step, whose number is counted from 1."""

    def __init__(self, dies_at: int) -> None:
        self.dies_at = dies_at
        self.count = 0

    def reach(self) -> None:
        self.count += 1
        if self.count == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.reach()
            result = function(*arguments)
            self.reach()
            return result

        return call

    def writer(self, *arguments: Any) -> Any:
        """A SetWriter, each call of which is a step."""
        real = _core.SetWriter(*arguments)

        class Writer:
            add = staticmethod(self.step(real.add))
            publish = staticmethod(self.step(real.publish))
            count = property(lambda _: real.count)

        return Writer()


def save(folder: Path, value: float, dies_at: int, report: int) -> None:
    """The forked process."""
    with torch.no_grad():
        for parameter in MODEL.parameters():
            parameter.fill_(value)
    MODEL.config.pad_token_id = 2 if MODEL.config.pad_token_id == 1 else 1  # a file that has to be put in place
    steps = Steps(dies_at)
    _save_sets._core = type("Core", (), {"SetWriter": staticmethod(steps.writer)})  # type: ignore[attr-defined]
    _save_sets._put = steps.step(_save_sets._put)
    with penstock.accelerate():
        os.write(report, b"begun")
        MODEL.save_pretrained(folder, max_shard_size="20KB")
    os.write(report, str(steps.count).encode())


def forked(folder: Path, value: float, dies_at: int = 0, dies_after: float | None = None) -> int:
    """Returns the number of steps; 0 when it was killed before the end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            save(folder, value, dies_at, writer)
        finally:
            os._exit(0)
    os.close(writer)
    os.read(reader, 5)
    if dies_after is not None:
        time.sleep(dies_after)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    steps = os.read(reader, 100)
    os.close(reader)
    return int(steps or 0)


def value_of(folder: Path) -> float:
    model, info = LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    values = {value for parameter in model.parameters() for value in parameter.detach().unique().tolist()}
    if info["missing_keys"] or info["unexpected_keys"] or len(values) != 1:
        raise SystemExit(f"a mixture: {info}, {sorted(values)[:5]}, {sorted(os.listdir(folder))}")
    return float(values.pop())


def main(folder: Path) -> None:
    value = 1.0
    steps = forked(folder, value)
    rng = random.Random(7)
    kills: list[tuple[int, float | None]] = [(step, None) for step in range(1, steps + 1)]
    kills += [(0, rng.uniform(0, 0.15)) for _ in range(25)]
    for dies_at, dies_after in kills:
        ended = forked(folder, value + 1, dies_at, dies_after)
        found = value_of(folder)
        print(json.dumps({"at": dies_at, "steps": steps, "ended": ended, "old": value, "found": found}))
        value = found
    if forked(folder, 1000.0) == 0:
        raise SystemExit("the last save did not end")
    print(json.dumps({"last": value_of(folder), "names": sorted(os.listdir(folder))}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
