"""torch.save and torch.load: another format for the same tensors. `make demo` shows them."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from cases import COLD_LOAD, SAVE, WARM_LOAD, Case, Task
from tensors import read_into_memory, sync_file


def load(task: Task) -> Callable[[], Any]:
    import torch

    tiny = io.BytesIO()
    torch.save({}, tiny)
    tiny.seek(0)
    torch.load(tiny, weights_only=True)  # imports modules, which are not what is measured
    return lambda: torch.load(task.file, weights_only=True)


def make_input(source: str, target: str) -> None:
    import torch

    torch.save(read_into_memory(source), target)


def save(task: Task) -> Callable[[], Any]:
    import torch

    tensors = read_into_memory(task.file)

    def save_and_sync() -> None:
        torch.save(tensors, task.output)
        sync_file(task.output)

    return save_and_sync


LOADS = {"start": load, "input_suffix": ".pt", "make_input": make_input, "in_default_race": False}

CASES = [
    Case("torch.load", COLD_LOAD, "peer", **LOADS),
    Case("torch.load", WARM_LOAD, "peer", **LOADS),
    Case("torch.save + fsync", SAVE, "peer", start=save, saves_checked=False, in_default_race=False),
]
