"""Files of torch.save, zip and legacy: torch's own save and load, and penstock's, by each of its names.

Every save starts from the same dict of tensors and ends with the file on the drive.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from cases import COLD_LOAD, SAVE, TORCH_COLD, TORCH_MANY, TORCH_SAVE, TORCH_WARM, WARM_LOAD, Case, Start, Task
from cases.fio import read as fio_read
from cases.fio import write as fio_write
from tensors import read_into_memory, sync_file
from torch_file import LEGACY_INPUT, TORCH_OUTPUT, ZIP_INPUT


def torch_save(zipped: bool = True, checksums: bool = True) -> Start:
    def start(task: Task) -> Callable[[], Any]:
        import torch

        torch.save({}, io.BytesIO())  # imports modules, which are not what is measured
        torch.serialization.set_crc32_options(checksums)
        tensors = read_into_memory(task.file)

        def save_and_sync() -> None:
            torch.save(tensors, task.output, _use_new_zipfile_serialization=zipped)
            sync_file(task.output)

        return save_and_sync

    return start


def penstock_save(**options: Any) -> Start:
    def start(task: Task) -> Callable[[], Any]:
        import penstock
        import penstock._torch.files  # as above

        tensors = read_into_memory(task.file)
        return lambda: penstock.save(tensors, task.output, **options)

    return start


def serialization_save(task: Task) -> Callable[[], Any]:
    """The drop-in for torch.save."""
    from penstock.fastpersist import serialization

    tensors = read_into_memory(task.file)
    return lambda: serialization.save(tensors, task.output)


def file_writer_save(task: Task) -> Callable[[], Any]:
    """torch.save itself, into our FastFileWriter."""
    import torch
    from penstock.fastpersist import FastFileWriter, FastFileWriterConfig

    tensors = read_into_memory(task.file)

    def save_and_close() -> None:
        writer = FastFileWriter(task.output, FastFileWriterConfig())
        torch.save(tensors, writer)
        writer.close()

    return save_and_close


def torch_load(**options: Any) -> Start:
    def start(task: Task) -> Callable[[], Any]:
        import torch

        tiny = io.BytesIO()
        torch.save({}, tiny)
        tiny.seek(0)
        torch.load(tiny, weights_only=True)  # imports modules, which are not what is measured
        return lambda: torch.load(task.file, weights_only=True, **options)

    return start


def penstock_load(**options: Any) -> Start:
    def start(task: Task) -> Callable[[], Any]:
        import penstock
        import penstock._torch.trees  # imports torch too

        return lambda: penstock.load(task.file, **options)

    return start


def serialization_load(task: Task) -> Callable[[], Any]:
    from penstock.fastpersist import serialization

    return lambda: serialization.load(task.file)


SAVES = [
    Case("fio direct write", TORCH_SAVE, "ceiling", external=fio_write, saves_checked=False),
    Case("torch.save + fsync", TORCH_SAVE, "peer", start=torch_save(), **TORCH_OUTPUT),
    Case("torch.save without CRC + fsync", TORCH_SAVE, "peer", start=torch_save(checksums=False), **TORCH_OUTPUT),
    Case("torch.save legacy + fsync", TORCH_SAVE, "peer", start=torch_save(zipped=False), **TORCH_OUTPUT),
    Case("penstock.save", TORCH_SAVE, "ours", start=penstock_save(), **TORCH_OUTPUT),
    Case("penstock.save legacy", TORCH_SAVE, "ours", start=penstock_save(format="torch-legacy"), **TORCH_OUTPUT),
    Case("penstock serialization.save", TORCH_SAVE, "ours", start=serialization_save, **TORCH_OUTPUT),
    Case(
        "torch.save to penstock's writer",
        TORCH_SAVE,
        "ours",
        start=file_writer_save,
        in_default_race=False,
        **TORCH_OUTPUT,
    ),
]

COLD_LOADS = [
    Case("fio direct read", TORCH_COLD, "ceiling", external=fio_read, **ZIP_INPUT),
    Case("torch.load", TORCH_COLD, "peer", start=torch_load(), **ZIP_INPUT),
    Case("torch.load, mmap", TORCH_COLD, "peer", start=torch_load(mmap=True), **ZIP_INPUT),
    Case("torch.load legacy", TORCH_COLD, "peer", start=torch_load(), **LEGACY_INPUT),
    Case("penstock.load", TORCH_COLD, "ours", start=penstock_load(), **ZIP_INPUT),
    Case("penstock.load legacy", TORCH_COLD, "ours", start=penstock_load(), **LEGACY_INPUT),
    Case("penstock serialization.load", TORCH_COLD, "ours", start=serialization_load, **ZIP_INPUT),
]

WARM_LOADS = [
    Case("torch.load", TORCH_WARM, "peer", start=torch_load(), **ZIP_INPUT),
    Case("torch.load, mmap", TORCH_WARM, "peer", start=torch_load(mmap=True), **ZIP_INPUT),
    Case("penstock.load", TORCH_WARM, "ours", start=penstock_load(), **ZIP_INPUT),
    Case("penstock.load, mmap", TORCH_WARM, "ours", start=penstock_load(cache="mmap"), **ZIP_INPUT),
]

TINY_LOADS = [
    Case("torch.load", TORCH_MANY, "peer", start=torch_load(), **ZIP_INPUT),
    Case("torch.load, mmap", TORCH_MANY, "peer", start=torch_load(mmap=True), **ZIP_INPUT),
    Case("penstock.load", TORCH_MANY, "ours", start=penstock_load(), **ZIP_INPUT),
]

# torch beside safetensors files of the same tensors: `make demo` shows it.
BESIDE_SAFETENSORS = [
    Case("torch.load", COLD_LOAD, "peer", start=torch_load(), in_default_race=False, **ZIP_INPUT),
    Case("torch.load", WARM_LOAD, "peer", start=torch_load(), in_default_race=False, **ZIP_INPUT),
    Case("torch.save + fsync", SAVE, "peer", start=torch_save(), in_default_race=False, **TORCH_OUTPUT),
]

CASES = [*BESIDE_SAFETENSORS, *SAVES, *COLD_LOADS, *WARM_LOADS, *TINY_LOADS]
