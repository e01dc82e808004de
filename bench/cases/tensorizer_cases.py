"""CoreWeave's tensorizer: its own format, read by four threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cases import COLD_LOAD, SAVE, WARM_LOAD, Case, Task
from tensors import read_into_memory, sync_file

READERS = 4


def write(tensors: dict[str, Any], path: str) -> None:
    from tensorizer import TensorSerializer

    serializer = TensorSerializer(path)
    serializer.write_state_dict(tensors)
    serializer.close()


def read(path: str) -> dict[str, Any]:
    from tensorizer import TensorDeserializer

    deserializer = TensorDeserializer(path, device="cpu", lazy_load=False, num_readers=READERS)
    return {name: tensor.detach() for name, tensor in deserializer.items()}


def make_input(source: str, target: str) -> None:
    temporary = target + ".part"
    write(read_into_memory(source), temporary)
    os.replace(temporary, target)


def load(task: Task) -> Callable[[], Any]:
    import tensorizer  # noqa: F401  its import is not what is measured

    return lambda: read(task.file)


def save(task: Task) -> Callable[[], Any]:
    import tensorizer  # noqa: F401

    tensors = read_into_memory(task.file)

    def save_and_sync() -> None:
        write(tensors, task.output)
        sync_file(task.output)

    return save_and_sync


INPUT: dict[str, Any] = {"input_suffix": ".tensors", "make_input": make_input}

CASES = [
    *(Case("tensorizer", race, "peer", start=load, **INPUT) for race in (COLD_LOAD, WARM_LOAD)),
    Case("tensorizer + fsync", SAVE, "peer", start=save, output_suffix=".tensors", read_back=read),
]
