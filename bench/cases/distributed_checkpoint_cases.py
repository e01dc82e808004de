"""torch.distributed.checkpoint in one process, in its own format and in Hugging Face's.

It loads into tensors that are there; their memory is untouched when the clock starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cases import COLD_LOAD, SAVE, WARM_LOAD, Case, Start, Task
from tensors import empty_tensors, read_into_memory, sync_file

WRITERS = 4  # threads that write, each its own file, in torch's format; the Hugging Face writer makes one file


def library() -> Any:
    import torch.distributed.checkpoint as dcp

    return dcp


def writer(path: str, hugging_face: bool) -> Any:
    dcp = library()
    return dcp.HuggingFaceStorageWriter(path) if hugging_face else dcp.FileSystemWriter(path, thread_count=WRITERS)


def reader(path: str, hugging_face: bool) -> Any:
    dcp = library()
    return dcp.HuggingFaceStorageReader(path) if hugging_face else dcp.FileSystemReader(path)


def quietly() -> None:
    """It warns that there is one process only, which is meant."""
    import logging
    import warnings

    warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")
    logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)


def load(hugging_face: bool) -> Start:
    def start(task: Task) -> Callable[[], Any]:
        dcp = library()
        quietly()
        tensors = empty_tensors(task.file)

        def load_into() -> dict[str, Any]:
            dcp.load(tensors, storage_reader=reader(task.file, hugging_face), no_dist=True)
            return tensors

        return load_into

    return start


def save(hugging_face: bool) -> Start:
    def start(task: Task) -> Callable[[], Any]:
        dcp = library()
        quietly()
        tensors = read_into_memory(task.file)

        def save_and_sync() -> None:
            dcp.save(tensors, storage_writer=writer(task.output, hugging_face), no_dist=True)
            sync_file(task.output)

        return save_and_sync

    return start


def read_back(path: str) -> dict[str, Any]:
    """The tensors of a checkpoint in torch's format, whatever their names and shapes."""
    import torch

    quietly()
    stored = reader(path, hugging_face=False).read_metadata().state_dict_metadata
    tensors = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in stored.items()}
    library().load(tensors, storage_reader=reader(path, hugging_face=False), no_dist=True)
    return tensors


def make_input(source: str, target: str) -> None:
    quietly()
    library().save(read_into_memory(source), storage_writer=writer(target + ".part", hugging_face=False), no_dist=True)
    os.replace(target + ".part", target)


def link_input(source: str, target: str) -> None:
    """A directory with the safetensors file alone: its reader takes all that it finds."""
    os.makedirs(target + ".part", exist_ok=True)
    os.link(source, os.path.join(target + ".part", "model.safetensors"))
    os.replace(target + ".part", target)


TORCH_INPUT: dict[str, Any] = {"input_suffix": ".dcp", "make_input": make_input}
HUGGING_FACE_INPUT: dict[str, Any] = {"input_suffix": ".hf", "make_input": link_input}

CASES = [
    Case("torch DCP", COLD_LOAD, "peer", start=load(False), **TORCH_INPUT),
    Case("torch DCP, Hugging Face", COLD_LOAD, "peer", start=load(True), **HUGGING_FACE_INPUT),
    Case("torch DCP, Hugging Face", WARM_LOAD, "peer", start=load(True), **HUGGING_FACE_INPUT),
    Case("torch DCP", SAVE, "peer", start=save(False), output_suffix=".dcp", read_back=read_back),
    Case("torch DCP, Hugging Face", SAVE, "peer", start=save(True), output_suffix=".hf", read_back=read_into_memory),
]
