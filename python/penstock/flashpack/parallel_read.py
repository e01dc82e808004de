"""What flashpack's parallel reader offers to others. The engine reads here, and chooses its threads and blocks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .. import _core
from .._options import path_text
from .._torch.devices import copied_to_device
from ..errors import ArgumentError
from ._storage import MacroblockSpec

if TYPE_CHECKING:
    from .._options import Path

__all__ = [
    "parallel_read_into_storage",
    "parallel_read_supported",
    "release_pinned_pool",
    "sharded_read_available",
]

_BLOCK_SIZE = 2**20
_QUEUE_DEPTH = 8
_THREADS = 4
# What passes through the host's memory at a time on its way to another device.
_PIECE_BYTES = 64 * 2**20


def sharded_read_available() -> bool:
    """Whether $FLASHPACK_PARALLEL_READ leaves reads by several ranks on; "0" turns them off for who asks here."""
    return os.environ.get("FLASHPACK_PARALLEL_READ", "1") != "0"


def parallel_read_supported(device: torch.device) -> bool:
    """What flashpack would answer: yes for CUDA, for the CPU where $FLASHPACK_CPU_PARALLEL_READ is set and not "0".

    $FLASHPACK_PARALLEL_READ=0 makes it no. `parallel_read_into_storage` reads to any device all the same.
    """
    if not sharded_read_available():
        return False
    if device.type == "cpu":
        return os.environ.get("FLASHPACK_CPU_PARALLEL_READ", "0") != "0"
    return device.type == "cuda"


def parallel_read_into_storage(
    path: Path, specs: Sequence[MacroblockSpec], blocks: Sequence[torch.Tensor], device: torch.device
) -> None:
    """Fills each block with the bytes of the file that its spec names. Every byte is there, or this raises."""
    if len(specs) != len(blocks):
        raise ArgumentError(f"{len(specs)} specs are not for {len(blocks)} blocks")
    text = path_text(path)
    memories = [_bytes_of(spec, block) for spec, block in zip(specs, blocks, strict=True)]
    handle = _core.AioHandle(_BLOCK_SIZE, _QUEUE_DEPTH, False, True, _THREADS)
    for spec, memory in zip(specs, memories, strict=True):
        if memory.device.type == "cpu":
            handle.read(memory.data_ptr(), memory.nbytes, memory, text, spec.offset_bytes, False, True)
        else:
            _read_to_device(handle, text, spec.offset_bytes, memory)
    handle.wait()


def _bytes_of(spec: MacroblockSpec, block: torch.Tensor) -> torch.Tensor:
    if block.nbytes != spec.length_bytes or not block.is_contiguous():
        raise ArgumentError(
            f"a block of {block.nbytes} bytes can't take the {spec.length_bytes} at byte {spec.offset_bytes}: "
            "it must be contiguous, and as large"
        )
    return block.detach().view(-1).view(torch.uint8)


def _read_to_device(handle: _core.AioHandle, path: str, offset: int, memory: torch.Tensor) -> None:
    piece = torch.empty(min(memory.nbytes, _PIECE_BYTES), dtype=torch.uint8)
    for begin in range(0, memory.nbytes, _PIECE_BYTES):
        part = piece[: min(_PIECE_BYTES, memory.nbytes - begin)]
        handle.read(part.data_ptr(), part.nbytes, part, path, offset + begin, False, False)
        copied_to_device(memory[begin : begin + part.nbytes], part)


def release_pinned_pool() -> None:
    """Gives memory that is kept for the next load back to the system."""
    _core.MemoryPool.process_default().trim()
