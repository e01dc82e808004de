"""DeepSpeed's FastPersist: torch.save into its FastFileWriter, whole storages, its quickest way, checkpoint engines."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fastpersist_peer as peer
from cases import TORCH_SAVE, Case, Start, Task
from tensors import read_into_memory
from torch_file import TORCH_OUTPUT


def save(tuning: peer.Tuning, zipped: bool) -> Start:
    def start(task: Task) -> Callable[[], Any]:
        import torch

        open_writer = peer.make_writer(task.output, tuning)
        tensors = read_into_memory(task.file)

        def save_and_close() -> None:
            writer = open_writer()
            torch.save(tensors, writer, _use_new_zipfile_serialization=zipped)
            writer.close()  # ends with fsync

        return save_and_close

    return start


def save_storages(tuning: peer.Tuning) -> Start:
    def start(task: Task) -> Callable[[], Any]:
        open_writer = peer.make_writer(task.output, tuning)
        tensors = read_into_memory(task.file)

        def save_and_close() -> None:
            writer = open_writer()
            peer.save_storages(tensors, writer)
            writer.close()

        return save_and_close

    return start


def engine_settings(zipped: bool) -> dict[str, Any]:
    """What DeepSpeed's JSON says about checkpoints; both engines take it."""
    writer = {
        "type": "FAST",
        "io_buffer_size": peer.SMALL.buffer_mb << 20,
        "io_buffer_double": True,
        "decoupled": False,
    }
    writer |= {"show_statistics": False, "data_parallel": "replica", "io_multiplier": 1}
    aio = {"block_size": peer.SMALL.block_mib << 20, "queue_depth": peer.SMALL.queue_depth, "use_gds": False}
    aio |= {"intra_op_parallelism": 1, "single_submit": False, "overlap_events": False}
    return {"checkpoint": {"checkpoint_serialization": zipped, "writer": writer}, "aio": aio}


def deepspeed_engine(task: Task) -> Callable[[], Any]:
    peer.load_operators()
    from deepspeed.runtime.checkpoint_engine.fast_checkpoint_engine import FastCheckpointEngine

    settings = engine_settings(zipped=True)
    configuration = SimpleNamespace(checkpoint_config=settings["checkpoint"], aio_config=settings["aio"])
    only_writer = SimpleNamespace(rank=0, world_size=1, global_rank=0, local_rank=0)
    engine = FastCheckpointEngine(configuration, only_writer, optimize_dp_state=False)
    tensors = read_into_memory(task.file)
    return lambda: engine.save(tensors, task.output)


def penstock_engine(task: Task) -> Callable[[], Any]:
    from penstock.fastpersist import CheckpointEngine

    settings = engine_settings(zipped=True)
    settings["checkpoint"]["writer"]["type"] = "fast"
    engine = CheckpointEngine(settings)
    tensors = read_into_memory(task.file)

    def save() -> None:
        engine.create("tag")
        engine.save(tensors, task.output)
        engine.commit("tag")

    return save


def case(name: str, start: Start, **options: Any) -> Case:
    return Case(name, TORCH_SAVE, "peer", start=start, needs=peer.CAN_RUN, **options, **TORCH_OUTPUT)


CASES = [
    case("FastPersist zip", save(peer.SMALL, zipped=True)),
    case("FastPersist legacy", save(peer.SMALL, zipped=False)),
    case("FastPersist legacy, whole storages, 256 MB", save_storages(peer.LARGE)),
    case("DeepSpeed's checkpoint engine", deepspeed_engine, in_default_race=False),
    Case(
        "penstock's checkpoint engine", TORCH_SAVE, "ours", start=penstock_engine, in_default_race=False, **TORCH_OUTPUT
    ),
]
