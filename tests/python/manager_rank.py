"""One rank of the tests of CheckpointManager: runs scenarios in turn, and writes what came of each as JSON."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import penstock
import torch
import torch.distributed as dist
from penstock import CheckpointManager
from training_runs import Run

TIMEOUT_SECONDS = 20


def make_manager(directory: Path, **arguments: Any) -> CheckpointManager:
    return CheckpointManager(directory, timeout=TIMEOUT_SECONDS, **arguments)


def make_run(rank: int) -> Run:
    """The same model on every rank; generators and loader are each rank's."""
    run = Run()
    torch.manual_seed(rank)
    random.seed(rank)
    run.loader.position = 10 * rank
    return run


def train(rank: int, run: Run) -> None:
    """A step of data parallelism: every rank has its batch, gradients are averaged."""
    run.optimizer.zero_grad()
    loss = run.model(run.loader.next() + torch.randn(4, 8)).square().mean()
    loss.backward()
    for parameter in run.model.parameters():
        dist.all_reduce(parameter.grad)
    for buffer in run.model.buffers():
        dist.broadcast(buffer, 0)
    run.optimizer.step()
    losses = torch.tensor([loss.item()])
    dist.all_reduce(losses)
    run.progress["losses"].append(losses.item())


def resume(rank: int, world: int, directory: Path, background: bool) -> str:
    name = "background" if background else "here"
    run = make_run(rank)
    with make_manager(directory / name, keep=2) as manager:
        assert manager.restore(into=run.state) is None
        for step in range(1, 6):
            train(rank, run)
            if step < 5:
                (manager.save_async if background else manager.save)(step, run.state)
        expected = list(run.progress["losses"])
        again = make_run(rank + 7)
        saved = manager.restore(into=again.state)
        assert saved is not None
        assert saved.step == 4
        train(rank, again)
        assert again.progress["losses"] == expected, (again.progress["losses"], expected)
        own = saved["loader"]["position"]
        assert own == 10 * rank + 4
    return ""


def resume_here(rank: int, world: int, directory: Path) -> str:
    return resume(rank, world, directory, background=False)


def resume_in_background(rank: int, world: int, directory: Path) -> str:
    return resume(rank, world, directory, background=True)


def bad_state(rank: int, world: int, directory: Path) -> str:
    with make_manager(directory / "bad") as manager:
        manager.save(1, {"x": 1})
        manager.save_async(2, {"x": 1, "y": object() if rank == 1 else 1})
        manager.wait()
    return "committed"


def bad_own_state(rank: int, world: int, directory: Path) -> str:
    manager = make_manager(directory / "bad")
    try:
        manager.save_async(3, {"x": 1, "rng": object() if rank == 1 else 1})
        manager.save(4, {"x": 1})
    finally:
        manager.close()
    return "committed"


def other_step(rank: int, world: int, directory: Path) -> str:
    with make_manager(directory / "bad") as manager:
        manager.save(5 + (rank == world - 1), {"x": 1})
    return "committed"


def fails_at_commit(rank: int, world: int, directory: Path) -> str:
    manager = make_manager(directory / "bad")
    real = os.fsync

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    if rank == 0:
        os.fsync = fail
    try:
        manager.save_async(6, {"x": 1})
        manager.wait()
    finally:
        os.fsync = real
        with suppress(penstock.Error):
            manager.close()
    return "committed"


def other_world(rank: int, world: int, directory: Path) -> str:
    """What one process saved for itself is read by all; what ranks saved for themselves is not taken for another's."""
    with make_manager(directory / "alone") as manager:
        saved = manager.restore()
        assert saved is not None
        saved["rng"]
    with make_manager(directory / "three") as manager:
        manager.restore(into={"loader": make_run(rank).loader})
    return "restored"


def split_model(rank: int, world: int, directory: Path) -> str:
    """DTensors are refused by every rank, whatever they are in."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world,))
    part = distribute_tensor(torch.arange(8.0 * world), mesh, [Shard(0)])
    with make_manager(directory / "bad") as manager:
        manager.save(7, {"optimizer": {"state": [{"exp_avg": part}]}})
    return "committed"


def dies_while_saving(rank: int, world: int, directory: Path) -> str:
    manager = make_manager(directory / "here")
    if rank == world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        manager.save_async(100, {"x": 1})
        manager.wait()
    finally:
        with suppress(penstock.Error):
            manager.close()
    return "committed"


SCENARIOS: list[Callable[[int, int, Path], str]] = [
    resume_here,
    resume_in_background,
    bad_state,
    bad_own_state,
    other_step,
    fails_at_commit,
    other_world,
    split_model,
    dies_while_saving,
]


def main(rank: int, world: int, directory: Path) -> None:
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timeout)
    with (directory / f"outcome-{rank}").open("w", buffering=1) as outcome:
        for scenario in SCENARIOS:
            try:
                said = scenario(rank, world, directory)
            except Exception as problem:
                said = f"{type(problem).__name__}: {problem}"
            outcome.write(json.dumps({"scenario": scenario.__name__, "said": said}) + "\n")
    os._exit(0)  # one of the ranks is dead: nothing can be torn down together


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
