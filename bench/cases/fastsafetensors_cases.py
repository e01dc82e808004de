"""fastsafetensors on the CPU: its thread pool, direct (the default) and buffered, its ParallelLoader and its saver."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cases import COLD_LOAD, COLD_REUSED, GROW_LOAD, GROW_LOAD_COUNT, GROW_SAVES, SAVE, Case, Task, races
from cases.again import again
from tensors import checkpoint_files, read_into_memory


def load(task: Task) -> Callable[[], Any]:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup
    from fastsafetensors.frameworks import get_framework_op

    get_framework_op("pytorch")  # imports torch, which the loader would do while it is timed
    files = checkpoint_files(task.file)

    def copy_and_view() -> dict[str, Any]:
        loader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True)
        loader.add_filenames({0: files})
        buffers = loader.copy_files_to_device()
        return {name: buffers.get_tensor(name) for name in loader.get_keys()}

    return copy_and_view


def load_through_page_cache(task: Task) -> Callable[[], Any]:
    os.environ["FASTSAFETENSORS_ODIRECT"] = "0"
    return load(task)


def load_in_parallel(task: Task) -> Callable[[], Any]:
    from fastsafetensors import ParallelLoader
    from fastsafetensors.frameworks import get_framework_op

    get_framework_op("pytorch")
    files = checkpoint_files(task.file)

    def iterate() -> dict[str, Any]:
        loader = ParallelLoader(None, files, device="cpu", nogds=True, use_tqdm_on_load=False)
        tensors = dict(loader.iterate_weights())
        loader.close()
        return tensors

    return iterate


def save(task: Task) -> Callable[[], Any]:
    """Its saver with its own settings: sixteen shards, mapped and filled by eight threads."""
    from fastsafetensors.saver import ParallelSaver

    tensors = read_into_memory(task.file)
    return lambda: ParallelSaver(fsync=True).save(tensors, os.path.join(task.output, "model"))


SHARDS: dict[str, Any] = {"output_suffix": ".shards", "read_back": read_into_memory}
DIRECT = races("cold", "warm", "half", "shards-cold", "moe-cold", "20k-cold", "one-cold", "1mib-cold")
BUFFERED = races("warm", "half", "shards-warm", "moe-warm", "20k-warm", "one-warm", "1mib-warm")

CASES = [
    *(Case("fastsafetensors", race, "peer", start=load) for race in DIRECT),
    *(Case("fastsafetensors, buffered", race, "peer", start=load_through_page_cache) for race in BUFFERED),
    Case("fastsafetensors ParallelLoader", COLD_LOAD, "peer", start=load_in_parallel),
    Case("fastsafetensors", COLD_REUSED, "peer", start=again(load)),
    Case("fastsafetensors ParallelSaver", SAVE, "peer", start=save, **SHARDS),
    Case("fastsafetensors", GROW_LOAD, "peer", start=load),
    Case("fastsafetensors", GROW_LOAD_COUNT, "peer", start=load_through_page_cache),
    *(Case("fastsafetensors", race, "peer", start=save, **SHARDS) for race in GROW_SAVES),
]
