"""The ranks of the tests of penstock.dcp: each runs scenarios in turn, and writes what came of each as a line.

Usage: dcp_rank.py DIRECTORY WORLD [--apart] SCENARIO...; with --apart each scenario has its own ranks and directory.
Ranks are forked, so that torch is imported once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import helpers
import penstock
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from penstock import _steps
from penstock.dcp import StorageReader, StorageWriter, _writer
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor import Shard as Split

TIMEOUT_SECONDS = 12.0
OBJECTS = {"step": 7, "betas": (0.9, 0.99), "names": ["a", "b"], "rng": (5, (1, 2, b"\x01\x02"))}


def full_tensors(step: int = 0) -> dict[str, torch.Tensor]:
    """What all ranks share, by name: large and tiny, of odd sizes, narrow types, a scalar and an empty one."""
    generator = torch.Generator().manual_seed(step)
    return {
        "rows": torch.randn(701, 513, generator=generator),
        "columns": torch.randn(300, 1203, generator=generator).to(torch.bfloat16),
        "both": torch.randn(254, 1030, generator=generator),
        "odd": torch.randn(7, 5, 3, generator=generator).half(),
        "short": torch.arange(3),
        "float8": torch.randn(16, 32, generator=generator).to(torch.float8_e4m3fn),
        "replicated": torch.randn(400, 129, generator=generator),
        "plain": torch.randn(31, 17, generator=generator),
        "scalar": torch.tensor(step + 0.5),
        "empty": torch.empty(0, 4),
    }


def placements(name: str, rows: int, columns: int) -> list[Any]:
    if name == "both" and columns > 1:
        return [Split(0), Split(1)]
    split = Split(1) if name in ("columns", "both") else Replicate() if name == "replicated" else Split(0)
    return [split, Replicate()] if columns > 1 else [split]


def shared_state(world: int, step: int = 0, *, fill: float | None = None, nested: bool = True) -> dict[str, Any]:
    """A state dict of DTensors on a mesh of two dimensions where there are four ranks, plain tensors and objects."""
    sizes = (2, 2) if world == 4 else (world,)
    mesh = dist.init_device_mesh("cpu", sizes)
    state: dict[str, Any] = {}
    for name, tensor in full_tensors(step).items():
        value = tensor if fill is None else torch.full_like(tensor, fill)
        if name not in ("plain", "scalar", "empty"):
            value = _distributed(value, mesh, placements(name, sizes[0], len(sizes)))
        state[name] = value
    if not nested:
        return state
    objects = OBJECTS if fill is None else dict.fromkeys(OBJECTS)
    return {"model": state, "extra": dict(objects)}


def _distributed(value: torch.Tensor, mesh: Any, where: list[Any]) -> DTensor:
    if value.dtype != torch.float8_e4m3fn:
        return distribute_tensor(value, mesh, where)
    local = distribute_tensor(value.view(torch.uint8), mesh, where).to_local()  # gloo moves no float8
    return DTensor.from_local(local.view(value.dtype), mesh, where)


def _whole(value: Any) -> torch.Tensor:
    if not isinstance(value, DTensor):
        return value
    if value.dtype != torch.float8_e4m3fn:
        return value.full_tensor()
    local = value.to_local().view(torch.uint8)
    return DTensor.from_local(local, value.device_mesh, value.placements).full_tensor().view(value.dtype)


def check(state: dict[str, Any], step: int = 0) -> None:
    """That it is the state of a step, bit by bit."""
    for name, expected in full_tensors(step).items():
        assert helpers.same(_whole(state["model"][name]), expected), name
    assert state["extra"] == OBJECTS


def load(directory: Path, world: int, step: int = 0, **arguments: Any) -> StorageReader:
    state = shared_state(world, step, fill=2)
    reader = StorageReader(directory, **arguments)
    dcp.load(state, storage_reader=reader)
    check(state, step)
    return reader


def saves(rank: int, world: int, directory: Path) -> None:
    writer = StorageWriter(directory / f"of-{world}")
    dcp.save(shared_state(world), storage_writer=writer)
    assert writer.stats.bytes > 0
    load(directory / f"of-{world}", world)


def replicas_are_stored_once(rank: int, world: int, directory: Path) -> None:
    held = [penstock.open(path) for path in sorted((directory / f"of-{world}").glob("*.safetensors"))]
    assert len(held) == world
    assert sum("replicated" in reader for reader in (_short_names(each) for each in held)) == 1
    assert sum("plain" in reader for reader in (_short_names(each) for each in held)) == 1


def _short_names(reader: Any) -> set[str]:
    return {name.removeprefix("model.") for name in reader}


def loads_what_others_saved(rank: int, world: int, directory: Path) -> None:
    """Those who were launched before, with more or fewer ranks."""
    for found in sorted(directory.glob("of-*")):
        for verify in (True, False, "all"):
            load(found, world, verify=verify)


def reads_little_more_than_its_part(rank: int, world: int, directory: Path) -> None:
    reader = load(directory / f"of-{world}", world, cache="direct", verify=False)
    total = sum(path.stat().st_size for path in (directory / f"of-{world}").iterdir())
    assert reader.stats.bytes < total * (0.75 if world > 1 else 1)


def of_torch(rank: int, world: int, directory: Path) -> None:
    dcp.save(shared_state(world), checkpoint_id=directory / f"torch-{world}")
    dist.barrier()
    load(directory / f"torch-{world}", world)
    state = shared_state(world, nested=False)
    path = str(directory / f"hugging-{world}")
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(path, save_distributed=True))
    dist.barrier()
    empty = shared_state(world, fill=3, nested=False)
    dcp.load(empty, storage_reader=StorageReader(path))
    check({"model": empty, "extra": OBJECTS})


def torch_reads_ours(rank: int, world: int, directory: Path) -> None:
    state = {f"model.{name}": tensor for name, tensor in shared_state(world, fill=4, nested=False).items()}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(directory / f"of-{world}")))
    check({"model": {name.removeprefix("model."): each for name, each in state.items()}, "extra": OBJECTS})


def in_the_background(rank: int, world: int, directory: Path) -> None:
    path = directory / f"background-{world}"
    for step in range(3):
        state = shared_state(world, step)
        future = dcp.async_save(state, storage_writer=StorageWriter(path / str(step)))
        for value in state["model"].values():  # training goes on
            local = value.to_local() if isinstance(value, DTensor) else value
            local.zero_()
        state["extra"]["step"] = 0
        future.result()
        load(path / str(step), world, step)


def with_cached_plans(rank: int, world: int, directory: Path) -> None:
    for step in range(3):
        planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        path = directory / f"cached-{world}" / str(step)
        dcp.save(shared_state(world, step), storage_writer=StorageWriter(path), planner=planner)
        load(path, world, step)


def fully_sharded(rank: int, world: int, directory: Path) -> None:
    """A model and its optimizer under FSDP2, as training has them; saved with all ranks and loaded by all."""
    path = directory / f"fsdp-{world}"
    model, optimizer = _trained(world, seed=1)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(state, storage_writer=StorageWriter(path))
    for found in sorted(directory.glob("fsdp-*")):
        other, its_optimizer = _trained(world, seed=2)
        state = dict(zip(("model", "optimizer"), get_state_dict(other, its_optimizer), strict=True))
        dcp.load(state, storage_reader=StorageReader(found))
        set_state_dict(other, its_optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        if found == path:
            _assert_same_training(model, optimizer, other, its_optimizer)


def _trained(world: int, seed: int) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(37, 61), torch.nn.LayerNorm(61), torch.nn.Linear(61, 5))
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * seed)
    model(torch.ones(3, 37) * seed).sum().backward()
    optimizer.step()
    return model, optimizer


def _assert_same_training(model: Any, optimizer: Any, other: Any, its_optimizer: Any) -> None:
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.to_local(), its.to_local())
        for name, value in optimizer.state[mine].items():
            found = its_optimizer.state[its][name]
            assert torch.equal(*(each.to_local() if isinstance(each, DTensor) else each for each in (value, found)))
    assert optimizer.param_groups[0]["lr"] == its_optimizer.param_groups[0]["lr"]


def fails_while_writing(rank: int, world: int, directory: Path) -> None:
    """One rank's error is every rank's, and leaves nothing; the same writer saves after it."""
    path = directory / f"failed-{world}"
    writer = StorageWriter(path)
    original = _writer.save
    if rank == world - 1:
        _writer.save = _raise
    try:
        error = _error_of(lambda: dcp.save(shared_state(world), storage_writer=writer))
    finally:
        _writer.save = original
    assert list(error.failures) == [world - 1], error.failures
    assert "the disk is gone" in str(error)
    assert not path.exists()
    dcp.save(shared_state(world), storage_writer=writer)
    load(path, world)
    assert not [name for name in os.listdir(directory) if name.startswith(f".failed-{world}")]


def _raise(*_: Any, **__: Any) -> Any:
    raise OSError("the disk is gone")


def flipped_bits_are_named(rank: int, world: int, directory: Path) -> None:
    path = directory / f"flipped-{world}"
    dcp.save(shared_state(world), storage_writer=StorageWriter(path))
    if rank == 0:
        file = path / f"model-{world:05}-of-{world:05}.safetensors"
        data = bytearray(file.read_bytes())
        data[-5000] ^= 4
        file.write_bytes(data)
    dist.barrier()
    said = str(_error_of(lambda: load(path, world)))
    assert f"model-{world:05}-of-{world:05}.safetensors" in said
    assert "is corrupt" in said


def _error_of(call: Callable[[], Any]) -> dcp.api.CheckpointException:
    try:
        call()
    except dcp.api.CheckpointException as error:
        return error
    raise AssertionError("no rank noticed")


def dies_at(stage: str, victims: str) -> Callable[[int, int, Path], None]:
    """Saves, and is killed on the way. Survivors have an error within the time-out."""

    def scenario(rank: int, world: int, directory: Path) -> None:
        (directory / f"process-{rank}").write_text(str(os.getpid()))
        dist.barrier()
        if rank == (1 if victims == "1" else 0):
            ranks = range(world) if victims == "all" else [rank]
            pids = [int((directory / f"process-{each}").read_text()) for each in ranks]
            _arm(stage, sorted(pids, key=os.getpid().__eq__))  # its own comes last
        dcp.save(shared_state(world, 2), storage_writer=StorageWriter(directory / "step-2"))

    return scenario


def _arm(stage: str, pids: list[int]) -> None:
    """Has processes killed when this one comes to a stage of a save."""

    def die(*_: Any, **__: Any) -> Any:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    original, committed = _writer.save, _writer.StagedDirectory.commit

    def save(tensors: Any, path: Any, **arguments: Any) -> None:
        if stage == "write":
            Path(path).write_bytes(b"a part of what was to come")
        else:
            original(tensors, path, **arguments)
        die()

    def commit(self: Any, **arguments: Any) -> None:
        committed(self, **arguments)
        die()

    if stage in ("write", "written"):
        _writer.save = save
    elif stage == "finish":
        _writer.encode = die
    else:
        _writer.StagedDirectory.commit = die if stage == "rename" else commit


class Points:
    """Counts where a save of this process begins or ends something, and kills processes at one of these points."""

    def __init__(self, at: int, pids: list[int]) -> None:
        self._left = at
        self._pids = pids

    def reach(self) -> None:
        self._left -= 1
        if self._left == 0:
            for pid in self._pids:
                os.kill(pid, signal.SIGKILL)

    def watch(self, owner: Any, *names: str) -> None:
        for name in names:
            setattr(owner, name, self._watched(getattr(owner, name)))

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.reach()
            result = original(*arguments, **named)
            self.reach()
            return result

        return call


def dies_at_point(number: int, victims: str, in_background: bool) -> Callable[[int, int, Path], None]:
    """Saves over a step that is there, and is killed at a point that is counted from 1."""

    def scenario(rank: int, world: int, directory: Path) -> None:
        (directory / f"process-{rank}").write_text(str(os.getpid()))
        dist.barrier()
        if rank == (1 if victims == "1" else 0):
            ranks = range(world) if victims == "all" else [rank]
            pids = [int((directory / f"process-{each}").read_text()) for each in ranks]
            points = Points(number, sorted(pids, key=os.getpid().__eq__))
            steps = ["set_up_storage_writer", "prepare_local_plan", "prepare_global_plan", "write_data", "finish"]
            points.watch(StorageWriter, *steps, "stage")
            points.watch(dcp.DefaultSavePlanner, "create_local_plan", "create_global_plan")
            points.watch(_writer, "save", "encode", "_write", "_index", "check_replaceable", "remove_dead")
            points.watch(_writer.StagedDirectory, "__init__", "commit", "_rename", "_release")
            points.watch(_steps, "_sync_tree", "_sync")
        state, writer = shared_state(world, 2), StorageWriter(directory / "step-2")
        if in_background:
            dcp.async_save(state, storage_writer=writer).result()
        else:
            dcp.save(state, storage_writer=writer)

    return scenario


# Where a save may be, and who is killed there; only the coordinator comes to the last three.
KILLS = [(stage, victims) for stage in ("write", "written") for victims in ("0", "1", "all")]
KILLS += [(stage, victims) for stage in ("finish", "rename", "renamed") for victims in ("0", "all")]
SCENARIOS: dict[str, Callable[[int, int, Path], None]] = {
    scenario.__name__: scenario
    for scenario in (
        saves,
        replicas_are_stored_once,
        loads_what_others_saved,
        reads_little_more_than_its_part,
        of_torch,
        torch_reads_ours,
        in_the_background,
        with_cached_plans,
        fully_sharded,
        fails_while_writing,
        flipped_bits_are_named,
    )
}
SCENARIOS |= {f"{stage}-{victims}": dies_at(stage, victims) for stage, victims in KILLS}


def scenario_called(name: str) -> Callable[[int, int, Path], None]:
    """ "point-7-all-async": the seventh point, all ranks, in the background."""
    if not name.startswith("point-"):
        return SCENARIOS[name]
    _, number, victims, way = name.split("-")
    return dies_at_point(int(number), victims, way == "async")


def run(rank: int, world: int, directory: Path, scenarios: list[str], seconds: float) -> None:
    """One rank."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
    with (directory / f"outcome-{world}-{rank}").open("w", buffering=1) as outcomes:
        for name in scenarios:
            begin = time.monotonic()
            try:
                scenario_called(name)(rank, world, directory)
                dist.barrier()
                said = ""
            except (Exception, dcp.api.CheckpointException) as error:
                said = f"{type(error).__name__}: {error}"
            print(json.dumps({"scenario": name, "said": said, "seconds": time.monotonic() - begin}), file=outcomes)


def launch(world: int, directory: Path, scenarios: list[str], seconds: float) -> None:
    """Forks ranks, waits for them, and writes down how they ended."""
    directory.mkdir(exist_ok=True)
    os.environ.update(helpers.rendezvous())
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            run(rank, world, directory, scenarios, seconds)
            os._exit(0)  # a group with a dead member can't be left in order
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    (directory / f"codes-{world}").write_text(json.dumps(codes))


def main() -> None:
    directory, world, scenarios = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if scenarios[0] != "--apart":
        launch(world, directory, scenarios, 60)
        return
    for name in scenarios[1:]:
        if name.startswith("points-"):
            launch_at_points(world, directory / name, name)
        else:
            launch(world, directory / name, [name], TIMEOUT_SECONDS)


def launch_at_points(world: int, directory: Path, name: str) -> None:
    """Once for every so many-th point, until nobody was killed, each in a copy of the folder of older steps."""
    _, victims, way, stride = name.split("-")
    number, died = 1 - int(stride), True
    while died:
        number += int(stride)
        here = directory / str(number)
        shutil.copytree(directory / "before", here)
        launch(world, here, [f"point-{number}-{victims}-{way}"], TIMEOUT_SECONDS)
        died = any(code < 0 for code in json.loads((here / f"codes-{world}").read_text()))


if __name__ == "__main__":
    main()
