"""Ranks on one machine: they read each other's memory, so that a byte is copied once on its way from one to another."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.utils.dlpack import from_dlpack

from .. import _core
from ..errors import Error

if TYPE_CHECKING:
    import torch.distributed as dist


def find_neighbours(lane: dist.ProcessGroup, size: int) -> list[int] | None:
    """The process of each rank, if every rank may read the memory of every other; else None. All ranks call it."""
    token = torch.randint(2**62, (1,))
    _core.let_siblings_read()
    own = torch.tensor([_machine(), os.getpid(), token.data_ptr(), int(token)])
    everyone = [torch.empty_like(own) for _ in range(size)]
    lane.allgather(everyone, own).wait()
    found = [tuple(map(int, other)) for other in everyone]
    # The answer comes from all, and says too that nobody needs the token any more.
    answer = torch.tensor([int(all(machine == _machine() and _is_there(*where) for machine, *where in found))])
    lane.allreduce(answer, torch.distributed.ReduceOp.MIN).wait()
    return [process for _, process, _, _ in found] if int(answer) else None


def _machine() -> int:
    """A number that processes have in common which see each other by the same numbers."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            boot = file.read()
        return zlib.crc32(boot + os.readlink("/proc/self/ns/pid").encode())
    except OSError:
        return os.getpid()


def _is_there(process: int, address: int, token: int) -> bool:
    """Whether the process that has this number here is the one that is meant, and may be read."""
    found = torch.zeros(1, dtype=torch.int64)
    try:
        _core.read_process(process, address, found.nbytes, found.nbytes, 1, found.data_ptr())
    except Error:
        return False
    return int(found) == token


def new_bytes(nbytes: int) -> torch.Tensor:
    """Memory that loads land in: what was used before is there at once, and fresh memory takes as long as reading."""
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    return from_dlpack(_core.MemoryPool.process_default().take(nbytes).capsule("U8", (nbytes,), 0))


def pull(process: int, address: int, shape: Sequence[int], dim: int, begin: int, end: int) -> torch.Tensor:
    """From `begin` to `end` in a dimension of an array of bytes in another process, which lies there in a row."""
    inner = math.prod(shape[dim + 1 :])
    count = math.prod(shape[:dim])
    stretch = (end - begin) * inner
    made = new_bytes(stretch * count)
    if made.numel() > 0:
        _core.read_process(process, address + begin * inner, stretch, shape[dim] * inner, count, made.data_ptr())
    return made
