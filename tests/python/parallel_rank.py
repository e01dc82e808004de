"""One rank of the tests of parallel saves: runs scenarios in turn, and writes what came of each as a line of JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from penstock import save_parallel
from penstock._torch import parallel
from penstock.errors import DistributedError
from remote_tensors import HOST, Remote

TIMEOUT_SECONDS = 15
FORMATS = {"safetensors": "safetensors", "flashpack": "flashpack", "torch": "pt", "torch-legacy": "legacy.pt"}


def make_state() -> dict[str, Any]:
    """About 9 MiB: large tensors that span shares, tiny ones, an empty one, one of odd length and a strided view."""
    generator = torch.Generator().manual_seed(5)
    state = {f"layer.{i}": torch.randn(500, 601 + i, generator=generator) for i in range(7)}
    state["odd"] = torch.arange(100_003).to(torch.uint8)
    state["view"] = state["layer.0"][:, ::2]
    return state | {"tiny": torch.ones(3, dtype=torch.bfloat16), "empty": torch.empty(0)}


def make_tree() -> dict[str, Any]:
    """What only torch files hold."""
    state = make_state()
    return {"model": state, "tied": state["layer.1"], "step": 7, "betas": (0.9, 0.99)}


def state_for(name: str) -> dict[str, Any]:
    return make_tree() if name.startswith("torch") else make_state()


def save(directory: Path, name: str, **arguments: Any) -> None:
    path = directory / f"saved.{FORMATS[name]}"
    save_parallel(state_for(name), path, format=name, shared="duplicate", timeout=TIMEOUT_SECONDS, **arguments)


def save_all(rank: int, world: int, directory: Path) -> None:
    for name in FORMATS:
        save(directory, name)


def save_with_checksums(rank: int, world: int, directory: Path) -> None:
    path = directory / "checked.safetensors"
    save_parallel(make_state(), path, checksums=True, shared="duplicate", timeout=TIMEOUT_SECONDS)


def save_shards(rank: int, world: int, directory: Path) -> None:
    """Twice: the second set, of other shards, takes the place of the first."""
    for limit in ("1MiB", "3MiB"):
        path = directory / "shards" / "m.safetensors"
        save_parallel(
            make_state(), path, max_shard_size=limit, checksums=True, shared="duplicate", timeout=TIMEOUT_SECONDS
        )


def fails_with_shards(rank: int, world: int, directory: Path) -> None:
    state = make_state() | ({"odd": object()} if rank == world - 1 else {})
    path = directory / "shards" / "m.safetensors"
    save_parallel(state, path, max_shard_size="1MiB", shared="duplicate", timeout=TIMEOUT_SECONDS)


def save_by_machine(rank: int, world: int, directory: Path) -> None:
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world))
    for partition in ("machine", "socket"):
        path = directory / f"{partition}.safetensors"
        save_parallel(make_state(), path, partition=partition, shared="duplicate", timeout=TIMEOUT_SECONDS)


def save_from_devices(rank: int, world: int, directory: Path) -> None:
    """Every rank copies what it writes from its device, and no more."""
    state = make_state()
    for name in ("safetensors", "flashpack"):
        remote = {key: Remote(tensor) for key, tensor in state.items()}
        HOST.nbytes = 0
        save_parallel(remote, directory / f"remote.{name}", format=name, shared="duplicate", timeout=TIMEOUT_SECONDS)
        print(HOST.nbytes, file=(directory / f"copied-{rank}").open("a"))


def other_tensors(rank: int, world: int, directory: Path) -> None:
    state = make_state()
    if rank == world - 1:
        del state["odd"]
    save_parallel(state, directory / "old.safetensors", shared="duplicate", timeout=TIMEOUT_SECONDS)


def bad_state(rank: int, world: int, directory: Path) -> None:
    state = make_state() if rank != 1 else {"a": object()}
    save_parallel(state, directory / "old.safetensors", shared="duplicate", timeout=TIMEOUT_SECONDS)


def fails_while_writing(rank: int, world: int, directory: Path) -> None:
    """The second rank fails after the file was made, the others have written their shares."""
    if rank == 1:
        original = parallel.Part._write
        parallel.Part._write = _raise  # type: ignore[method-assign]
    try:
        save_parallel(make_state(), directory / "old.safetensors", shared="duplicate", timeout=TIMEOUT_SECONDS)
    finally:
        if rank == 1:
            parallel.Part._write = original  # type: ignore[method-assign]


def _raise(*_: Any) -> Any:
    raise OSError("the drive is on fire")


def no_directory(rank: int, world: int, directory: Path) -> None:
    save_parallel(make_state(), directory / "nowhere/x.safetensors", shared="duplicate", timeout=TIMEOUT_SECONDS)


def dies_while_writing(rank: int, world: int, directory: Path) -> None:
    """Who lives has no threads of the save's group left, also while the error is kept: at exit they could abort it."""
    if rank == world - 1:
        parallel.Part._write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign, assign]
    before = len(os.listdir("/proc/self/task"))
    try:
        save_parallel(make_state(), directory / "old.safetensors", shared="duplicate", timeout=TIMEOUT_SECONDS)
    except DistributedError as problem:
        left = len(os.listdir("/proc/self/task")) - before
        raise DistributedError(f"{problem}; threads left: {left}") from problem


SCENARIOS: dict[str, Callable[[int, int, Path], None]] = {
    scenario.__name__: scenario
    for scenario in (
        save_all,
        save_with_checksums,
        save_shards,
        fails_with_shards,
        save_by_machine,
        save_from_devices,
        other_tensors,
        bad_state,
        fails_while_writing,
        no_directory,
        dies_while_writing,  # last: nobody can meet again after it
    )
}


def main() -> None:
    rank, world, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=60))
    with (directory / f"outcome-{rank}").open("w", buffering=1) as outcomes:
        for name, scenario in SCENARIOS.items():
            try:
                scenario(rank, world, directory)
                said = ""
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            print(json.dumps({"scenario": name, "said": said}), file=outcomes)
    os._exit(0)  # a group with a dead member can't be left in order


if __name__ == "__main__":
    main()
