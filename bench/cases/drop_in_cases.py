"""penstock under the names of the safetensors package. Those of flashpack and FastPersist are in the races of their formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cases import COLD_LOAD, SAVE, WARM_LOAD, Case, Task
from tensors import read_into_memory


def load(task: Task) -> Callable[[], Any]:
    from penstock.safetensors.torch import load_file

    return lambda: load_file(task.file)


def save(task: Task) -> Callable[[], Any]:
    from penstock.safetensors.torch import save_file

    tensors = read_into_memory(task.file)
    return lambda: save_file(tensors, task.output)


CASES = [
    *(Case("penstock.safetensors load_file", race, "ours", start=load) for race in (COLD_LOAD, WARM_LOAD)),
    Case("penstock.safetensors save_file", SAVE, "ours", start=save),
]
