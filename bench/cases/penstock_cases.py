"""penstock from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cases import COLD_REUSED, EVERY_LOAD, GROW_LOADS, GROW_SAVES, IMPORT, OPEN_MANY, SAVE, WARM_LOAD, Case, Task, races
from cases.safetensors_cases import import_seconds
from tensors import read_into_memory


def load(task: Task) -> Callable[[], Any]:
    import penstock
    import penstock._torch  # with torch; what a first call imports is not what is measured

    return lambda: penstock.load(task.file)


def load_copy(task: Task) -> Callable[[], Any]:
    import penstock
    import penstock._torch

    return lambda: penstock.load(task.file, cache="buffered")


def load_into_reused_memory(task: Task) -> Callable[[], Any]:
    """A second load, into the memory that the tensors of a first one have let go of."""
    import penstock

    tensors = penstock.load(task.file, cache="direct")
    del tensors
    return load(task)


def load_into(task: Task) -> Callable[[], Any]:
    """Into tensors that are there, and have been written to."""
    import penstock
    import penstock._numpy
    import penstock._torch

    tensors = read_into_memory(task.file)

    def load_and_return() -> dict[str, Any]:
        penstock.load_into(tensors, task.file, assign=False)
        return tensors

    return load_and_return


def save(task: Task) -> Callable[[], Any]:
    import penstock
    import penstock._torch

    tensors = read_into_memory(task.file)
    return lambda: penstock.save(tensors, task.output)


def drop_in_load(task: Task) -> Callable[[], Any]:
    """Under the names of safetensors; those of flashpack and FastPersist are in the races of their formats."""
    from penstock.safetensors.torch import load_file

    return lambda: load_file(task.file)


def drop_in_save(task: Task) -> Callable[[], Any]:
    from penstock.safetensors.torch import save_file

    tensors = read_into_memory(task.file)
    return lambda: save_file(tensors, task.output)


def open_and_list(task: Task) -> Callable[[], Any]:
    import penstock

    def list_names() -> None:
        names = list(penstock.open(task.file))
        assert len(names) == 100_000

    return list_names


CASES = [
    *(Case("penstock.load", race, "ours", start=load) for race in EVERY_LOAD),
    Case("penstock.load", COLD_REUSED, "ours", start=load_into_reused_memory),
    Case("penstock.load_into", COLD_REUSED, "ours", start=load_into),
    Case("penstock.load, copied", WARM_LOAD, "ours", start=load_copy),
    Case("penstock.save", SAVE, "ours", start=save),
    *(Case("penstock.safetensors load_file", race, "ours", start=drop_in_load) for race in races("cold", "warm")),
    Case("penstock.safetensors save_file", SAVE, "ours", start=drop_in_save),
    Case("penstock.open", OPEN_MANY, "ours", start=open_and_list),
    Case("import penstock", IMPORT, "ours", external=import_seconds("penstock")),
    *(Case("penstock", race, "ours", start=load) for race in GROW_LOADS),
    *(Case("penstock", race, "ours", start=save) for race in GROW_SAVES),
]
