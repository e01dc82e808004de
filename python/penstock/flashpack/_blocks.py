"""Macroblocks in memory. On the CPU each starts at a page, as O_DIRECT and page-locking ask for."""

from __future__ import annotations

import mmap
from functools import partial

import torch

from .. import _core
from .._options import load_options
from .._reader import Reader
from .._torch import DTYPES, build, landing, streams

PAGE = mmap.PAGESIZE

# What passes through the host's memory at a time on its way to another device.
_PIECE_BYTES = 256 * 2**20


def empty_bytes(nbytes: int, device: torch.device) -> torch.Tensor:
    """Memory for a block."""
    if device.type != "cpu" or nbytes == 0:
        return torch.empty(nbytes, dtype=torch.uint8, device=device)
    return torch.frombuffer(mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.uint8)


def read_blocks(core: _core.Reader) -> list[torch.Tensor]:
    """The blocks in this process's memory.

    A block that starts at a page of the file does so in memory, mapped or read; any other gets memory of its own.
    """
    infos = core.infos()
    names = [name for name, _, _, _, offset, _ in infos if offset % PAGE == 0]
    loaded: dict[str, torch.Tensor] = core.load(names, load_options(), None, build)[0] if names else {}
    targets: list[tuple[str, int, int, str | None]] = []
    for name, dtype, _, _, _, nbytes in infos:
        if name in loaded:
            loaded[name] = _at_a_page(loaded[name])
            continue
        memory = empty_bytes(nbytes, torch.device("cpu"))
        loaded[name] = memory.view(DTYPES[dtype])
        if nbytes > 0:
            targets.append((name, memory.data_ptr(), nbytes, None))
    if targets:
        core.load_into(targets, load_options(), None)
    return [loaded[str(number)] for number in range(len(infos))]


def _at_a_page(block: torch.Tensor) -> torch.Tensor:
    """A small block may follow another one closely."""
    if block.data_ptr() % PAGE == 0:
        return block
    return empty_bytes(block.nbytes, block.device).view(block.dtype).copy_(block)


def read_blocks_to(core: _core.Reader, device: torch.device, piece_bytes: int = _PIECE_BYTES) -> list[torch.Tensor]:
    """The blocks on another device."""
    if landing(device).passes_host:
        return _read_by_pieces(core, device, piece_bytes)
    blocks = [torch.empty(shape, dtype=DTYPES[dtype], device=device) for _, dtype, shape, *_ in core.infos()]
    fill_blocks(core, {str(number): block for number, block in enumerate(blocks)})
    return blocks


def fill_blocks(core: _core.Reader, blocks: dict[str, torch.Tensor]) -> None:
    """Reads into memory of a device that the engine reaches, by the blocks' names."""
    rows: list[tuple[str, int, int, str | None]] = [
        (name, block.data_ptr(), block.nbytes, None) for name, block in blocks.items() if block.nbytes > 0
    ]
    core.load_into(rows, load_options(streams=streams(blocks.values())), None)


def _read_by_pieces(core: _core.Reader, device: torch.device, piece_bytes: int) -> list[torch.Tensor]:
    """By way of pieces in this process's memory."""
    reader = Reader(core, "torch", partial(load_options))
    blocks = []
    for number in range(len(reader)):
        lazy = reader[str(number)]
        block = torch.empty(lazy.shape, dtype=DTYPES[lazy.dtype], device=device)
        step = max(piece_bytes // block.element_size(), 1)
        for begin in range(0, len(block), step):
            block[begin : begin + step].copy_(lazy[begin : begin + step])
        blocks.append(block)
    return blocks
