"""How long a save in the background holds its caller up: until the tensors may change again.

Beside it one copy of the same tensors, by memcpy on one core and by torch on all, into memory that was used before; so
is the memory of penstock's snapshot, but for the first save of a process, which has a row of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from cases import BLOCKED, Case, Start, Task, Unfinished
from tensors import read_into_memory, sync_file
from torch_file import TORCH_OUTPUT


def used_copies(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def memcpy(task: Task) -> Callable[[], Any]:
    tensors = read_into_memory(task.file)
    copies = used_copies(tensors)

    def copy_all() -> None:
        for name, tensor in tensors.items():
            ctypes.memmove(copies[name].data_ptr(), tensor.data_ptr(), tensor.nbytes)

    return copy_all


def torch_copy(task: Task) -> Callable[[], Any]:
    tensors = read_into_memory(task.file)
    copies = used_copies(tensors)

    def copy_all() -> None:
        for name, tensor in tensors.items():
            copies[name].copy_(tensor)

    copy_all()  # starts torch's threads, which is not what is measured
    return copy_all


def torch_save(task: Task) -> Callable[[], Any]:
    import torch

    tensors = read_into_memory(task.file)

    def save_and_sync() -> None:
        torch.save(tensors, task.output)
        sync_file(task.output)

    return save_and_sync


def save_async(saves_before: int, snapshot: bool = True) -> Start:
    def start(task: Task) -> Callable[[], Any]:
        import penstock

        tensors = read_into_memory(task.file)
        for _ in range(saves_before):
            penstock.save_async(tensors, task.output).wait()

        def save_until_staged() -> Unfinished:
            job = penstock.save_async(tensors, task.output, snapshot=snapshot)
            if snapshot:
                job.staged()
            return Unfinished(job.wait)

        return save_until_staged

    return start


CASES = [
    Case("memcpy, one core", BLOCKED, "ceiling", start=memcpy, saves_checked=False),
    Case("torch copy_, all cores", BLOCKED, "ceiling", start=torch_copy, saves_checked=False),
    Case("torch.save + fsync", BLOCKED, "peer", start=torch_save, **TORCH_OUTPUT),
    Case("penstock.save_async", BLOCKED, "ours", start=save_async(saves_before=1), **TORCH_OUTPUT),
    Case("penstock.save_async, the first", BLOCKED, "ours", start=save_async(saves_before=0), **TORCH_OUTPUT),
    Case(
        "penstock.save_async, no snapshot",
        BLOCKED,
        "ours",
        start=save_async(saves_before=1, snapshot=False),
        in_default_race=False,
        **TORCH_OUTPUT,
    ),
]
