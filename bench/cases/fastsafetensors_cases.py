"""fastsafetensors on the CPU: its thread pool with direct I/O (the default), and through the page cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cases import COLD_LOAD, WARM_LOAD, Case, Task


def load(task: Task) -> Callable[[], Any]:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup
    from fastsafetensors.frameworks import get_framework_op

    get_framework_op("pytorch")  # imports torch, which the loader would do while it is timed

    def copy_and_view() -> dict[str, Any]:
        loader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True)
        loader.add_filenames({0: [task.file]})
        buffers = loader.copy_files_to_device()
        return {name: buffers.get_tensor(name) for name in loader.get_keys()}

    return copy_and_view


def load_through_page_cache(task: Task) -> Callable[[], Any]:
    os.environ["FASTSAFETENSORS_ODIRECT"] = "0"
    return load(task)


CASES = [
    Case("fastsafetensors", COLD_LOAD, "peer", start=load),
    Case("fastsafetensors", WARM_LOAD, "peer", start=load),
    Case("fastsafetensors, buffered", WARM_LOAD, "peer", start=load_through_page_cache),
]
