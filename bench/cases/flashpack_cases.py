"""flashpack and penstock.flashpack, each by its own pack_to_file and assign_from_file. The models begin empty."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cases import ASSIGN_COLD, ASSIGN_WARM, PACK, Case, Start, Task
from flashpack_file import FLASHPACK_INPUT, FLASHPACK_OUTPUT
from tensors import empty_module, read_into_memory, sync_file


def library(ours: bool) -> Any:
    if ours:
        import penstock.flashpack as chosen
    else:
        import flashpack as chosen
    return chosen


def assign(ours: bool) -> Start:
    def start(task: Task) -> Callable[[], Any]:
        assign_from_file = library(ours).assign_from_file
        module = empty_module(task.file)

        def assign_and_list() -> dict[str, Any]:
            assign_from_file(module, task.file, device="cpu")
            return {name: parameter.detach() for name, parameter in module.named_parameters()}

        return assign_and_list

    return start


def assign_in_parallel(task: Task) -> Callable[[], Any]:
    """The reader with threads that flashpack has, and does not use on the CPU unless told to."""
    os.environ["FLASHPACK_CPU_PARALLEL_READ"] = "1"
    return assign(ours=False)(task)


def pack_and_sync(task: Task) -> Callable[[], Any]:
    pack_to_file = library(ours=False).pack_to_file
    tensors = read_into_memory(task.file)

    def run() -> None:
        pack_to_file(tensors, task.output, target_dtype=None)
        sync_file(task.output)

    return run


def pack(task: Task) -> Callable[[], Any]:
    pack_to_file = library(ours=True).pack_to_file
    tensors = read_into_memory(task.file)
    return lambda: pack_to_file(tensors, task.output, target_dtype=None)


CASES = [
    Case("flashpack pack_to_file + fsync", PACK, "peer", start=pack_and_sync, **FLASHPACK_OUTPUT),
    Case("penstock pack_to_file", PACK, "ours", start=pack, **FLASHPACK_OUTPUT),
    Case("flashpack assign_from_file", ASSIGN_COLD, "peer", start=assign(ours=False), **FLASHPACK_INPUT),
    Case("flashpack, parallel reader", ASSIGN_COLD, "peer", start=assign_in_parallel, **FLASHPACK_INPUT),
    Case("penstock assign_from_file", ASSIGN_COLD, "ours", start=assign(ours=True), **FLASHPACK_INPUT),
    Case("flashpack assign_from_file", ASSIGN_WARM, "peer", start=assign(ours=False), **FLASHPACK_INPUT),
    Case("flashpack, parallel reader", ASSIGN_WARM, "peer", start=assign_in_parallel, **FLASHPACK_INPUT),
    Case("penstock assign_from_file", ASSIGN_WARM, "ours", start=assign(ours=True), **FLASHPACK_INPUT),
]
