"""Rows that save through a checkpoint engine: DeepSpeed's own where it is installed, and penstock's, by the same settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fastpersist_peer
from save_rows import MIB, Order, Prepare, Row
from tensors import sync_file


def settings(order: Order, writer: str, decoupled: bool = False) -> dict[str, Any]:
    """The JSON that DeepSpeed takes, as far as it is about checkpoints."""
    tuning = fastpersist_peer.tuning_for(order.io_buffer_mb)
    return {
        "checkpoint": {
            "checkpoint_serialization": order.zipped,
            "writer": {
                "type": writer,
                "decoupled": decoupled,
                "io_buffer_size": order.io_buffer_mb * MIB,
                "io_buffer_double": not order.single_io_buffer,
                "show_statistics": False,
                "data_parallel": "replica",
                "io_multiplier": 1,
            },
        },
        "aio": {
            "block_size": tuning.block_mib * MIB,
            "queue_depth": tuning.queue_depth,
            "intra_op_parallelism": tuning.threads,
            "single_submit": False,
            "overlap_events": tuning.overlap_events,
            "use_gds": False,
        },
    }


def deepspeed_torch_engine(checkpoint: Any, order: Order) -> Callable[[], None]:
    """What it uses when no writer is set."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

    engine = TorchCheckpointEngine()
    engine.zipfile_serialization = order.zipped

    def save() -> None:
        engine.save(checkpoint, order.path)
        sync_file(order.path)

    return save


def deepspeed_engine(writer: str) -> Prepare:
    def prepare(checkpoint: Any, order: Order) -> Callable[[], None]:
        fastpersist_peer.load_operators()
        from deepspeed.runtime.checkpoint_engine.fast_checkpoint_engine import FastCheckpointEngine

        chosen = settings(order, writer.upper())
        configuration = SimpleNamespace(checkpoint_config=chosen["checkpoint"], aio_config=chosen["aio"])
        only_writer = SimpleNamespace(rank=0, world_size=1, global_rank=0, local_rank=0)
        engine = FastCheckpointEngine(configuration, only_writer, optimize_dp_state=False)

        def save() -> None:
            engine.save(checkpoint, order.path)
            if writer == "python":
                sync_file(order.path)

        return save

    return prepare


def our_engine(writer: str, decoupled: bool = False) -> Prepare:
    def prepare(checkpoint: Any, order: Order) -> Callable[[], None]:
        from penstock.fastpersist import CheckpointEngine

        engine = CheckpointEngine(settings(order, writer, decoupled))

        def save() -> None:
            engine.create(order.tag)
            engine.save(checkpoint, order.path)
            engine.commit(order.tag)
            if writer == "python":
                sync_file(order.path)

        return save

    return prepare


def peer_row(prepare: Prepare, writes: bool = True) -> Row:
    return Row(prepare, "peer", writes, fastpersist_peer.CAN_RUN)


ENGINE_ROWS = {
    "test_ds_engine_save": peer_row(deepspeed_torch_engine),
    "test_ds_engine_mock_save": peer_row(deepspeed_engine("mock"), writes=False),
    "test_ds_engine_py_save": peer_row(deepspeed_engine("python")),
    "test_ds_engine_aio_fast_save": peer_row(deepspeed_engine("fast")),
    "test_penstock_engine_mock_save": Row(our_engine("mock"), writes=False),
    "test_penstock_engine_py_save": Row(our_engine("python")),
    "test_penstock_engine_fast_save": Row(our_engine("fast")),
    "test_penstock_engine_decoupled_save": Row(our_engine("fast", decoupled=True)),
}
