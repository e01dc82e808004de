"""DeepSpeed's FastPersist, driven as its own examples do, where deepspeed is installed and can build its operators.

These are compiled when first asked for, which needs a C++ compiler, ninja and the headers of libaio, but no GPU.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LEGACY_MAGIC, LEGACY_VERSION = 0x1950A86A20F9469CFC6C, 1001
LEGACY_SYSTEM = {
    "protocol_version": LEGACY_VERSION,
    "little_endian": True,
    "type_sizes": {"short": 2, "int": 4, "long": 4},
}
CAN_RUN = "import fastpersist_peer; fastpersist_peer.load_operators()"


@dataclass(frozen=True)
class Tuning:
    """Of its handle and its staging memory."""

    block_mib: int
    queue_depth: int
    threads: int
    overlap_events: bool
    buffer_mb: int


# What its scripts began with, and what they came to.
SMALL = Tuning(block_mib=8, queue_depth=8, threads=1, overlap_events=False, buffer_mb=64)
LARGE = Tuning(block_mib=16, queue_depth=64, threads=4, overlap_events=True, buffer_mb=256)


def load_operators() -> None:
    """Builds or loads what is compiled; raises where that can't be done."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("DS_PIN_MEMORY_BACKEND", "native")  # its engine can't lock memory otherwise, without a GPU
    os.environ["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"  # where pip puts ninja
    import deepspeed.io.fast_file_writer as writers
    from deepspeed.ops.op_builder import AsyncIOBuilder
    from deepspeed.ops.op_builder.utils import UtilsBuilder

    # Its list for the CPU lacks this operator, though that is plain C++, and the writer can't be made without it.
    writers.UtilsBuilder = UtilsBuilder
    if not AsyncIOBuilder().is_compatible(verbose=False):
        raise RuntimeError("DeepSpeed's async_io can't be built here: it needs libaio-dev")
    AsyncIOBuilder().load(verbose=False)
    UtilsBuilder().load(verbose=False)


def make_writer(path: str, tuning: Tuning) -> Callable[[], Any]:
    """Prepares the handle and the memory, and tries them; the function returned opens a FastFileWriter."""
    load_operators()
    import torch
    from deepspeed.io import FastFileWriter, FastFileWriterConfig
    from deepspeed.ops.op_builder import AsyncIOBuilder

    handle = (
        AsyncIOBuilder()
        .load(verbose=False)
        .aio_handle(
            block_size=tuning.block_mib << 20,
            queue_depth=tuning.queue_depth,
            single_submit=False,
            overlap_events=tuning.overlap_events,
            intra_op_parallelism=tuning.threads,
        )
    )
    buffer = handle.new_cpu_locked_tensor(tuning.buffer_mb << 20, torch.empty(0, dtype=torch.uint8))
    config = FastFileWriterConfig(dnvme_handle=handle, pinned_tensor=buffer, double_buffer=True)
    trial = FastFileWriter(file_path=path, config=config)
    torch.save(torch.zeros(1 << 20), trial)  # what a first save does once is not what is measured
    trial.close()
    os.unlink(path)
    return lambda: FastFileWriter(file_path=path, config=config)


def save_storages(tensors: Any, writer: Any) -> None:
    """The legacy format with storages handed over whole: what FastPersist's changes to torch.save come to.

    One by one, with their sizes written here: when it writes the sizes itself, as of 0.19.8, it reads them from memory
    that it has freed, and the file does not load.
    """
    for storage, dtype in write_legacy_head(tensors, writer):
        writer.write(struct.pack("<q", storage.nbytes() // dtype.itemsize))
        writer.save_torch_storage_object_list([(storage, dtype)], save_size=False)


def write_legacy_head(tensors: Any, file: Any) -> list[tuple[Any, Any]]:
    """Everything of a legacy file but its storages, which are returned in their order, each with its element type."""
    import torch

    storages: dict[str, tuple[Any, Any]] = {}

    class StoragePickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if not isinstance(obj, torch.storage.TypedStorage):
                return None
            untyped = obj._untyped_storage
            key = str(untyped._cdata)
            storages[key] = (untyped, obj.dtype)
            kind = getattr(torch, obj._pickle_storage_type())
            return ("storage", kind, key, torch.serialization.location_tag(untyped), obj._size(), None)

    for part in (LEGACY_MAGIC, LEGACY_VERSION, LEGACY_SYSTEM):
        pickle.dump(part, file, protocol=2)
    StoragePickler(file, protocol=2).dump(tensors)
    keys = sorted(storages)
    pickle.dump(keys, file, protocol=2)
    return [storages[key] for key in keys]
