"""DeepSpeed's FastPersist: torch.save into its FastFileWriter, and whole storages, its quickest way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fastpersist_peer as peer
from cases import TORCH_SAVE, Case, Start, Task
from tensors import read_into_memory
from torch_file import TORCH_OUTPUT


def save(tuning: peer.Tuning, zipped: bool) -> Start:
    def start(task: Task) -> Callable[[], Any]:
        import torch

        open_writer = peer.make_writer(task.output, tuning)
        tensors = read_into_memory(task.file)

        def save_and_close() -> None:
            writer = open_writer()
            torch.save(tensors, writer, _use_new_zipfile_serialization=zipped)
            writer.close()  # ends with fsync

        return save_and_close

    return start


def save_storages(tuning: peer.Tuning) -> Start:
    def start(task: Task) -> Callable[[], Any]:
        open_writer = peer.make_writer(task.output, tuning)
        tensors = read_into_memory(task.file)

        def save_and_close() -> None:
            writer = open_writer()
            peer.save_storages(tensors, writer)
            writer.close()

        return save_and_close

    return start


def case(name: str, start: Start, in_default_race: bool = True) -> Case:
    return Case(
        name, TORCH_SAVE, "peer", start=start, needs=peer.CAN_RUN, in_default_race=in_default_race, **TORCH_OUTPUT
    )


CASES = [
    case("FastPersist zip", save(peer.SMALL, zipped=True)),
    case("FastPersist legacy", save(peer.SMALL, zipped=False)),
    case("FastPersist legacy, whole storages", save_storages(peer.SMALL), in_default_race=False),
    case("FastPersist legacy, whole storages, 256 MB", save_storages(peer.LARGE)),
    case("FastPersist zip, 256 MB", save(peer.LARGE, zipped=True), in_default_race=False),
]
