"""One rank of the tests of decoupled, data-parallel checkpoints: runs scenarios, writes a line of JSON of each."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from penstock import Error
from penstock._torch import parallel
from penstock.fastpersist import CheckpointEngine

PATIENT_SECONDS = 60.0
IMPATIENT_SECONDS = 3.0


def make_state(value: float) -> dict[str, Any]:
    """About 6 MiB, with storages that span shares, one that two tensors share, and things that are no tensors."""
    layers = {f"layer.{i}": torch.full((500, 601 + i), value + i) for i in range(5)}
    return {"model": layers, "tied": layers["layer.1"][3], "step": int(value), "betas": (0.9, 0.99)}


def make_engine(
    partition: str = "replica", zipped: bool = True, timeout: float = PATIENT_SECONDS, **arguments: Any
) -> CheckpointEngine:
    writer = {"decoupled": True, "data_parallel": partition}
    settings = {"checkpoint": {"checkpoint_serialization": zipped, "writer": writer}}
    return CheckpointEngine(settings, timeout=timeout, **arguments)


class Replaced:
    """Another way to write a share, while it lasts."""

    def __init__(self, write: Callable[..., Any]) -> None:
        self._original = parallel.Part._write
        self._write = write

    def __enter__(self) -> None:
        write, original = self._write, self._original
        parallel.Part._write = lambda *arguments: write(original, *arguments)  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        parallel.Part._write = self._original  # type: ignore[method-assign]


def said_by(action: Callable[[], object]) -> str:
    """What an action raises, as text."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def train(state: dict[str, Any]) -> float:
    """A step that changes every tensor, and meets the other ranks in the default group."""
    for tensor in state["model"].values():
        tensor.add_(1000)
    flag = torch.ones(1)
    dist.all_reduce(flag)
    return float(flag)


def saves_while_training_goes_on(rank: int, world: int, directory: Path) -> Any:
    engine = make_engine()
    engine.create("a")
    state, met = make_state(0), []
    gate = threading.Event()

    def write(original: Any, *arguments: Any) -> Any:
        gate.wait(PATIENT_SECONDS)  # until training has met in the middle of the save
        return original(*arguments)

    with Replaced(write):
        engine.save(state, directory / "gated.pt")
        met += [train(state) for _ in range(20)]
        under_way = not engine._jobs[0].done
        gate.set()
        engine.wait()
    for step in range(1, 4):
        engine.save(make_state(step), directory / f"step-{step}.pt")
        met.append(train(state))
    engine.commit("a")
    engine.cleanup()
    return {"under_way": under_way, "met": met, "bytes": [stats["bytes"] for stats in engine.stats]}


def saves_legacy_files(rank: int, world: int, directory: Path) -> Any:
    engine = make_engine(zipped=False)
    engine.save(make_state(4), directory / "legacy.pt")
    engine.cleanup()


def saves_by_machine_and_socket(rank: int, world: int, directory: Path) -> Any:
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world))
    for partition in ("machine", "socket"):
        engine = make_engine(partition)
        engine.save(make_state(5), directory / f"{partition}.pt")
        engine.cleanup()


def a_share_fails(rank: int, world: int, directory: Path) -> Any:
    """Every rank hears of it at commit; the engine saves again."""

    def fail(*_: Any) -> Any:
        raise OSError("the drive is on fire")

    engine = make_engine()
    with Replaced(fail if rank == 1 else lambda original, *arguments: original(*arguments)):
        engine.save(make_state(6), directory / "old.pt")
        said = said_by(lambda: engine.commit("a"))
    engine.save(make_state(6), directory / "after.pt")
    engine.cleanup()
    return said


def a_failure_stops_the_next_save(rank: int, world: int, directory: Path) -> Any:
    engine = make_engine()
    engine.save(make_state(6), directory / "nowhere/model.pt")
    said = said_by(lambda: engine.save(make_state(6), directory / "never.pt"))
    return [said, said_by(lambda: engine.commit("a"))]


def a_state_can_not_be_pickled(rank: int, world: int, directory: Path) -> Any:
    engine = make_engine()
    state = make_state(6) | ({"lock": threading.Lock()} if rank == 1 else {})
    said = said_by(lambda: engine.save(state, directory / "old.pt"))
    return [said, said_by(lambda: engine.commit("a"))]


def all_refuse_when_one_is_busy(rank: int, world: int, directory: Path) -> Any:
    engine = make_engine(when_busy="refuse")
    gate = threading.Event()

    def write(original: Any, *arguments: Any) -> Any:
        gate.wait(PATIENT_SECONDS)
        return original(*arguments)

    with Replaced(write):
        engine.save(make_state(7), directory / "first.pt")
        said = said_by(lambda: engine.save(make_state(8), directory / "second.pt"))
        gate.set()
        engine.commit("a")
    engine.save(make_state(9), directory / "third.pt")
    engine.cleanup()
    return said


def a_rank_stalls(rank: int, world: int, directory: Path) -> Any:
    """Longer than the others wait. They fail, and it does when it comes back; the engine is of no more use then."""
    others_failed = threading.Event()

    def stall(original: Any, *arguments: Any) -> Any:
        others_failed.wait(PATIENT_SECONDS)
        return original(*arguments)

    engine = make_engine(timeout=IMPATIENT_SECONDS)
    with Replaced(stall if rank == 1 else lambda original, *arguments: original(*arguments)):
        engine.save(make_state(6), directory / "old.pt")
        said = "" if rank == 1 else said_by(lambda: engine.commit("a"))
        dist.barrier()
        others_failed.set()
        said = said or said_by(lambda: engine.commit("a"))
    return [said, said_by(lambda: engine.save(make_state(6), directory / "old.pt"))]


def a_rank_dies(rank: int, world: int, directory: Path) -> Any:
    def die(*_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    engine = make_engine()
    with Replaced(die if rank == world - 1 else lambda original, *arguments: original(*arguments)):
        engine.save(make_state(6), directory / "old.pt")
        return said_by(lambda: engine.commit("a"))


SCENARIOS: dict[str, Callable[[int, int, Path], Any]] = {
    scenario.__name__: scenario
    for scenario in (
        saves_while_training_goes_on,
        saves_legacy_files,
        saves_by_machine_and_socket,
        a_share_fails,
        a_failure_stops_the_next_save,
        a_state_can_not_be_pickled,
        all_refuse_when_one_is_busy,
        a_rank_stalls,
        a_rank_dies,  # last: nobody can meet again after it
    )
}


def run_scenarios(rank: int, world: int, directory: Path) -> None:
    with (directory / f"outcome-{rank}").open("w", buffering=1) as outcomes:
        for name, scenario in SCENARIOS.items():
            try:
                found = scenario(rank, world, directory)
            except Error as error:
                found = f"failed: {error}"
            print(json.dumps({"scenario": name, "found": found}), file=outcomes)
    os._exit(0)  # a group with a dead member can't be left in order


def exit_without_commit(rank: int, world: int, directory: Path) -> None:
    """The end of a script that forgot to: torch.distributed is gone before the saves are."""
    engine = make_engine()
    engine.save(make_state(3), directory / "model.pt")
    dist.destroy_process_group()


def interrupted_at_exit(rank: int, world: int, directory: Path) -> None:
    """Ctrl-C while the process waits for a share that takes long."""
    import atexit

    waits = threading.Event()

    def write(original: Any, part: Any, *arguments: Any) -> Any:
        waits.wait()
        threading.Event().wait(0.5)  # by then it was cancelled
        return original(part, *arguments)

    def interrupt() -> None:
        waits.set()
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    engine = make_engine()
    parallel.Part._write, original = (lambda *arguments: write(original, *arguments)), parallel.Part._write  # type: ignore[method-assign]
    engine.save(make_state(3), directory / "old.pt")
    atexit.register(interrupt)


ENDINGS = {ending.__name__: ending for ending in (run_scenarios, exit_without_commit, interrupted_at_exit)}


if __name__ == "__main__":
    place, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group("gloo", rank=place, world_size=size, timeout=timedelta(seconds=60))
    ENDINGS[sys.argv[4]](place, size, folder)
