"""One rank of a measured group in a fresh process: the protocol of measure.py, and the ranks' own process group.

The group is made, and has met once, before the rank says "ready". The clock runs from the line on stdin until every
page of what the rank keeps has been touched. With `verify` its tensors are compared with the files afterwards.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import model
from measure import Probe, warm_up
from rank_ways import BY_KEY, RankTask
from tensors import touch_every_page

TIMEOUT_SECONDS = 300


def join_group(task: RankTask) -> None:
    """By gloo over the loopback, unless the environment names another interface."""
    import torch.distributed

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{task.rendezvous}",
        rank=task.rank,
        world_size=task.ranks,
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
    )
    torch.distributed.barrier()


def in_one_piece(tensor: Any) -> Any:
    """The tensor, or all of the memory between its first and its last element."""
    if tensor.is_contiguous() or tensor.numel() == 0:
        return tensor
    span = 1 + sum(stride * (extent - 1) for stride, extent in zip(tensor.stride(), tensor.shape, strict=True))
    return tensor.as_strided((span,), (1,))


def touch(tensors: dict[str, Any]) -> None:
    touch_every_page({name: in_one_piece(tensor) for name, tensor in tensors.items()})


def measure(task: RankTask) -> dict[str, Any]:
    stats: dict[str, Any] = {}
    load = BY_KEY[task.way].start(task, stats)
    warm_up()
    gc.collect()  # how soon Python looks through all that torch has made depends on what was imported before
    print("ready", flush=True)
    sys.stdin.readline()
    with Probe() as probe:
        begin = time.monotonic()
        tensors = load()
        touch(tensors)
        end = time.monotonic()
    result = {**probe.result, "begin": begin, "end": end}
    result["kept_bytes"] = sum(tensor.nbytes for tensor in tensors.values())
    result["bytes_on_drive"] = stats.get("bytes_on_drive")
    if task.verify:
        verify(tensors, task)
    return result


def verify(tensors: dict[str, Any], task: RankTask) -> None:
    """Refuses what differs from the files, as they are read here without any of the libraries."""
    missing = set(tensors)
    for name, expected in slices_of_files(task):
        if name not in tensors:
            raise SystemExit(f"rank {task.rank}: {task.way} did not give {name}")
        missing.discard(name)
        if list(tensors[name].shape) != list(expected.shape[:-1]) or not same_bytes(tensors[name], expected):
            raise SystemExit(f"rank {task.rank}: {task.way} gave other bytes of {name} than the file has")
    if missing:
        raise SystemExit(f"rank {task.rank}: {task.way} gave {len(missing)} tensors too many, such as {min(missing)}")


def slices_of_files(task: RankTask) -> Iterator[tuple[str, Any]]:
    """Name and bytes of each tensor that this rank keeps: an array whose last dimension is the bytes of an element."""
    import numpy

    wanted = task.filter()
    for file in map(Path, task.files):
        entries, base = model.read_header(file)
        content = numpy.memmap(file, dtype=numpy.uint8, mode="r")
        for name in filter(wanted, entries) if wanted else entries:
            begin, end = entries[name]["data_offsets"]
            shape, size = entries[name]["shape"], model.ELEMENT_SIZE[entries[name]["dtype"]]
            whole = content[base + begin : base + end].reshape(*shape, size)
            dimension = task.dimension(name)
            part = slice(None) if dimension is None else slice(*task.part(shape[dimension]))
            yield name, whole[(slice(None),) * (dimension or 0) + (part,)]


def same_bytes(tensor: Any, expected: Any) -> bool:
    import torch

    found = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return bool((found == expected.reshape(-1)).all())


def main() -> None:
    task = RankTask(**json.loads(sys.argv[1]))
    import numpy  # noqa: F401  used by the touching; its import is not what is measured

    if task.ranks > 1:
        join_group(task)
    result = measure(task)
    print(json.dumps(result), flush=True)
    if task.ranks > 1:
        import torch.distributed

        torch.distributed.barrier()  # who leaves first would end the others' connections
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
