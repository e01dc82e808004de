"""The rows of the save benchmarks: one way each to save a checkpoint, from its preparation to the file on the drive.

Run as a program it measures one row: it makes the checkpoint, saves it, loads the file again and compares every bit, and
prints one JSON line. A row is durable: where its way does not sync the file, that is done before the clock stops.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fastpersist_peer
from checkpoint_models import make_checkpoint, named_tensors
from tensors import same_tree, sync_file

MIB = 1 << 20


@dataclass(frozen=True)
class Order:
    """What is to be saved, where and how. Crosses to the measured process as JSON."""

    tag: str
    path: str
    zipped: bool
    model: str = ""  # or a tensor:
    tensor_mb: int = 0
    scale: float = 1.0
    half: bool = False
    optimizer: bool = False
    gpu: bool = False
    io_buffer_mb: int = 64
    single_io_buffer: bool = False
    statistics: bool = False


@dataclass(frozen=True)
class Measured:
    """Bytes of the file (or those counted, where nothing was written) and seconds."""

    nbytes: int
    seconds: float


# Prepares what is not timed and returns what is; that may give the statistics of a writer.
Prepare = Callable[[Any, Order], Callable[[], "dict[str, Any] | None"]]


@dataclass(frozen=True)
class Row:
    prepare: Prepare
    role: str = "ours"  # or "peer"
    writes: bool = True
    needs: str = ""  # a statement that fails where the row can't run


def torch_save(checkpoint: Any, order: Order) -> Callable[[], None]:
    import torch

    def save() -> None:
        torch.save(checkpoint, order.path, _use_new_zipfile_serialization=order.zipped)
        sync_file(order.path)

    return save


def safetensors_save(checkpoint: Any, order: Order) -> Callable[[], None]:
    from safetensors.torch import save_file

    tensors = dict(named_tensors(checkpoint))

    def save() -> None:
        save_file(tensors, order.path)
        sync_file(order.path)

    return save


def save_to_writer(open_writer: Callable[[Order], Callable[[], Any]], syncs: bool = False) -> Prepare:
    """torch.save into a file object of FastPersist's kind."""

    def prepare(checkpoint: Any, order: Order) -> Callable[[], dict[str, Any]]:
        import torch

        make = open_writer(order)

        def save() -> dict[str, Any]:
            writer = make()
            torch.save(checkpoint, writer, _use_new_zipfile_serialization=order.zipped)
            writer.close()
            if syncs:
                sync_file(order.path)
            return dict(writer.stats if hasattr(writer, "stats") else writer._stats)

        return save

    return prepare


def deepspeed_writer(name: str) -> Callable[[Order], Callable[[], Any]]:
    """Its mock, and Python's own file."""

    def open_writer(order: Order) -> Callable[[], Any]:
        fastpersist_peer.load_operators()
        import deepspeed.io

        return lambda: getattr(deepspeed.io, name)(order.path)

    return open_writer


def deepspeed_fast_writer(order: Order) -> Callable[[], Any]:
    return fastpersist_peer.make_writer(
        order.path, fastpersist_peer.tuning_for(order.io_buffer_mb), not order.single_io_buffer
    )


def deepspeed_storages(checkpoint: Any, order: Order) -> Callable[[], None]:
    """Whole storages; a zip has no such way, and there it is torch.save again."""
    if order.zipped:
        return save_to_writer(deepspeed_fast_writer)(checkpoint, order)  # type: ignore[return-value]
    make = deepspeed_fast_writer(order)

    def save() -> None:
        writer = make()
        fastpersist_peer.save_storages(checkpoint, writer)
        writer.close()

    return save


def our_writer(name: str) -> Callable[[Order], Callable[[], Any]]:
    def open_writer(order: Order) -> Callable[[], Any]:
        import penstock.fastpersist

        return lambda: getattr(penstock.fastpersist, name)(order.path)

    return open_writer


def our_fast_writer(order: Order) -> Callable[[], Any]:
    from penstock.fastpersist import FastFileWriter, FastFileWriterConfig, get_aio_handle, get_pinned_buffer

    handle, buffer = get_aio_handle(), get_pinned_buffer(size_mb=order.io_buffer_mb)
    config = FastFileWriterConfig(handle, buffer, double_buffer=not order.single_io_buffer)
    return lambda: FastFileWriter(order.path, config)


def our_fastpersist_save(checkpoint: Any, order: Order) -> Callable[[], dict[str, Any]]:
    from penstock.fastpersist import fastpersist_save, fastpersist_save_legacy

    save = fastpersist_save if order.zipped else fastpersist_save_legacy
    return lambda: save(checkpoint, order.path, double_buffer=not order.single_io_buffer)


def our_serialization_save(checkpoint: Any, order: Order) -> Callable[[], None]:
    from penstock.fastpersist import serialization

    return lambda: serialization.save(checkpoint, order.path, _use_new_zipfile_serialization=order.zipped)


def our_save(checkpoint: Any, order: Order) -> Callable[[], dict[str, Any]]:
    import penstock
    import penstock._torch.files  # a first call's imports are not what is measured

    return lambda: penstock.save(checkpoint, order.path, format="torch" if order.zipped else "torch-legacy")


def peer_row(prepare: Prepare, writes: bool = True) -> Row:
    return Row(prepare, "peer", writes, fastpersist_peer.CAN_RUN)


SAVE_ROWS = {
    "test_save": Row(torch_save),
    "test_safetensors_save": Row(safetensors_save),
    "test_ds_mock_save": peer_row(save_to_writer(deepspeed_writer("MockFileWriter")), writes=False),
    "test_ds_py_save": peer_row(save_to_writer(deepspeed_writer("PyFileWriter"), syncs=True)),
    "test_ds_aio_fast_save": peer_row(save_to_writer(deepspeed_fast_writer)),
    "test_fastpersist_aio_nopatch": peer_row(deepspeed_storages),
    "test_penstock_mock_save": Row(save_to_writer(our_writer("MockFileWriter")), writes=False),
    "test_penstock_py_save": Row(save_to_writer(our_writer("PyFileWriter"), syncs=True)),
    "test_penstock_fast_save": Row(save_to_writer(our_fast_writer)),
    "test_penstock_fastpersist_save": Row(our_fastpersist_save),
    "test_penstock_serialization_save": Row(our_serialization_save),
    "test_penstock_save": Row(our_save),
}


def all_rows() -> dict[str, Row]:
    from engine_rows import ENGINE_ROWS

    return {**SAVE_ROWS, **ENGINE_ROWS}


def checkpoint_for(order: Order) -> Any:
    import torch

    if order.model:
        checkpoint: Any = make_checkpoint(order.model, order.scale, order.half, order.optimizer)
    else:
        checkpoint = torch.randint(128, (order.tensor_mb * MIB,), dtype=torch.uint8)
    return _on_gpu(checkpoint) if order.gpu else checkpoint


def _on_gpu(tree: Any) -> Any:
    import torch

    if isinstance(tree, torch.Tensor):
        return tree.cuda()
    return {key: _on_gpu(value) for key, value in tree.items()} if isinstance(tree, dict) else tree


def require_same(checkpoint: Any, order: Order) -> None:
    """Loads what was saved, by torch (or safetensors), and compares."""
    import torch

    if order.tag == "test_safetensors_save":
        from safetensors.torch import load_file

        loaded, wanted = dict(sorted(load_file(order.path).items())), dict(sorted(named_tensors(checkpoint)))
    else:
        loaded, wanted = torch.load(order.path, map_location="cpu", weights_only=True, mmap=order.zipped), checkpoint
    if not same_tree(loaded, wanted):
        raise ValueError(f"{order.path}: {order.tag} saved something else than it was given")


def measure(order: Order) -> Measured:
    row = all_rows()[order.tag]
    path = Path(order.path)
    checkpoint = checkpoint_for(order)
    save = row.prepare(checkpoint, order)
    begin = time.perf_counter()
    stats = save()
    seconds = time.perf_counter() - begin
    if order.statistics and stats:
        print(f"stats = {dict(stats)}", file=sys.stderr, flush=True)
    nbytes = path.stat().st_size if row.writes else sum(t.nbytes for _, t in named_tensors(checkpoint))
    if row.writes:
        require_same(checkpoint, order)
    return Measured(nbytes, seconds)


def main() -> None:
    order = Order(**json.loads(sys.argv[1]))
    print(json.dumps(asdict(measure(order))), flush=True)


if __name__ == "__main__":
    main()
