"""The safetensors package, as its documentation shows it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

from cases import COLD_LOAD, IMPORT, LOAD_MANY, OPEN_MANY, SAVE, WARM_LOAD, Case, Task
from tensors import read_into_memory, sync_file


def load(task: Task) -> Callable[[], Any]:
    from safetensors.torch import load_file

    return lambda: load_file(task.file)


def save(task: Task) -> Callable[[], Any]:
    from safetensors.torch import save_file

    tensors = read_into_memory(task.file)

    def save_and_sync() -> None:
        save_file(tensors, task.output)
        sync_file(task.output)

    return save_and_sync


def open_and_list(task: Task) -> Callable[[], Any]:
    import torch  # noqa: F401  its import is not what is measured
    from safetensors import safe_open

    def list_names() -> None:
        with safe_open(task.file, framework="pt") as file:
            names = list(file.keys())
        assert len(names) == 100_000

    return list_names


def import_seconds(module: str) -> Callable[[Task, str], dict[str, float]]:
    """Times `import module` alone, in a bare interpreter."""
    program = f"import time; begin = time.perf_counter(); import {module}; print(time.perf_counter() - begin)"

    def measure(_task: Task, python: str) -> dict[str, float]:
        printed = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout
        return {"seconds": float(printed)}

    return measure


CASES = [
    Case("safetensors load_file", COLD_LOAD, "peer", start=load),
    Case("safetensors load_file", WARM_LOAD, "peer", start=load),
    Case("safetensors save_file + fsync", SAVE, "peer", start=save),
    Case("safetensors safe_open", OPEN_MANY, "peer", start=open_and_list),
    Case("safetensors load_file", LOAD_MANY, "peer", start=load),
    Case("import safetensors", IMPORT, "peer", external=import_seconds("safetensors")),
]
