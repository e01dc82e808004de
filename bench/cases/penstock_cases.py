"""penstock from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cases import COLD_LOAD, IMPORT, LOAD_MANY, OPEN_MANY, SAVE, WARM_LOAD, Case, Task
from cases.safetensors_cases import import_seconds
from tensors import read_into_memory


def load(task: Task) -> Callable[[], Any]:
    import penstock
    import torch  # noqa: F401  its import is not what is measured

    return lambda: penstock.load(task.file)


def load_copy(task: Task) -> Callable[[], Any]:
    import penstock
    import torch  # noqa: F401

    return lambda: penstock.load(task.file, cache="buffered")


def load_into_reused_memory(task: Task) -> Callable[[], Any]:
    """A second load, into the memory that the tensors of a first one have let go of."""
    import penstock

    tensors = penstock.load(task.file, cache="direct")
    del tensors
    return load(task)


def save(task: Task) -> Callable[[], Any]:
    import penstock

    tensors = read_into_memory(task.file)
    return lambda: penstock.save(tensors, task.output)


def open_and_list(task: Task) -> Callable[[], Any]:
    import penstock

    def list_names() -> None:
        names = list(penstock.open(task.file))
        assert len(names) == 100_000

    return list_names


CASES = [
    Case("penstock.load", COLD_LOAD, "ours", start=load),
    Case("penstock.load, reused memory", COLD_LOAD, "ours", start=load_into_reused_memory),
    Case("penstock.load", WARM_LOAD, "ours", start=load),
    Case("penstock.load, copied", WARM_LOAD, "ours", start=load_copy),
    Case("penstock.save", SAVE, "ours", start=save),
    Case("penstock.open", OPEN_MANY, "ours", start=open_and_list),
    Case("penstock.load", LOAD_MANY, "ours", start=load),
    Case("import penstock", IMPORT, "ours", external=import_seconds("penstock")),
]
