"""A training loop that saves its model and its optimiser's state in every iteration, beside one that saves nothing.

A network of the raced size (weights and two moments of Adam) is really trained, on all cores. An iteration counts from
one optimiser step's end to the next's, with all waiting that the checkpoint causes; the median of several counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cases import TRAINING, Case, Start, Task, Unfinished
from tensors import same_tree, sync_file
from torch_file import TORCH_OUTPUT

WIDTH = 2048
TOKENS = 512  # per iteration: what makes it long enough for the drive to take the state meanwhile
BYTES_PER_PARAMETER = 12  # float32, and two moments


class Training:
    """A stack of linear layers with Adam, after a first iteration, which makes the moments."""

    def __init__(self, state_nbytes: int) -> None:
        import torch

        torch.manual_seed(1)
        depth = max(1, state_nbytes // (BYTES_PER_PARAMETER * WIDTH * (WIDTH + 1)))
        self._network = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(depth)))
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=1e-4)
        self._batch = torch.randn(TOKENS, WIDTH)
        self.compute()
        self.update()

    def compute(self) -> None:
        """Forward and backward: reads the weights, changes only gradients."""
        self._optimizer.zero_grad()
        self._network(self._batch).square().mean().backward()

    def update(self) -> None:
        self._optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"model": self._network.state_dict(), "optimizer": self._optimizer.state_dict()}


def check(training: Training, task: Task) -> None:
    """Once per race: the file holds the state after the last iteration."""
    import torch

    if task.verify and not same_tree(torch.load(task.output, weights_only=True), training.state()):
        raise ValueError(f"{task.output}: what was saved is not the state of the training")


def no_checkpoint(task: Task) -> Callable[[], Any]:
    training = Training(os.path.getsize(task.file))

    def iterate() -> None:
        training.compute()
        training.update()

    return iterate


def torch_save(task: Task) -> Callable[[], Any]:
    import torch

    training = Training(os.path.getsize(task.file))

    def iterate() -> Unfinished:
        training.compute()
        training.update()
        torch.save(training.state(), task.output)
        sync_file(task.output)
        return Unfinished(lambda: check(training, task))

    return iterate


def save_async(snapshot: bool) -> Start:
    """With a snapshot training waits for the copy; without, before the weights change, for what is not written yet."""

    def start(task: Task) -> Callable[[], Any]:
        import penstock

        training = Training(os.path.getsize(task.file))
        job = penstock.save_async(training.state(), task.output, snapshot=snapshot)

        def finish() -> None:
            job.wait()
            check(training, task)

        def iterate() -> Unfinished:
            nonlocal job
            training.compute()
            job.wait()  # one save at a time, and its errors are not missed
            training.update()
            job = penstock.save_async(training.state(), task.output, snapshot=snapshot)
            if snapshot:
                job.staged()
            return Unfinished(finish)

        return iterate

    return start


def case(name: str, role: str, start: Start) -> Case:
    """What is saved is not the raced file; `check` compares it."""
    return Case(name, TRAINING, role, start=start, saves_checked=False, **TORCH_OUTPUT)


CASES = [
    case("no checkpoint", "ceiling", no_checkpoint),
    case("torch.save + fsync", "peer", torch_save),
    case("penstock.save_async", "ours", save_async(snapshot=False)),
    case("penstock.save_async, snapshot", "ours", save_async(snapshot=True)),
]
