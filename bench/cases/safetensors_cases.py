"""The safetensors package, as its documentation shows it: mapped (its default), and by pread."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

from cases import COLD_REUSED, EVERY_LOAD, GROW_LOADS, GROW_SAVES, IMPORT, OPEN_MANY, SAVE, Case, Start, Task, races
from cases.again import again
from tensors import checkpoint_files, read_into_memory, sync_file


def load_by(backend: str) -> Start:
    def start(task: Task) -> Callable[[], Any]:
        from safetensors.torch import load_file

        files = checkpoint_files(task.file)
        if len(files) == 1:
            return lambda: load_file(files[0], backend=backend)
        return lambda: {name: tensor for file in files for name, tensor in load_file(file, backend=backend).items()}

    return start


load, pread = load_by("mmap"), load_by("pread")


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


READ = races("cold", "warm", "moe-warm", "1mib-warm")

CASES = [
    *(Case("safetensors load_file", race, "peer", start=load) for race in EVERY_LOAD),
    *(Case("safetensors load_file, pread", race, "peer", start=pread) for race in READ),
    Case("safetensors load_file", COLD_REUSED, "peer", start=again(load)),
    Case("safetensors save_file + fsync", SAVE, "peer", start=save),
    Case("safetensors safe_open", OPEN_MANY, "peer", start=open_and_list),
    Case("import safetensors", IMPORT, "peer", external=import_seconds("safetensors")),
    *(Case("safetensors", race, "peer", start=load) for race in GROW_LOADS),
    *(Case("safetensors + fsync", race, "peer", start=save) for race in GROW_SAVES),
]
