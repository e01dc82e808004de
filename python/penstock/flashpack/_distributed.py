"""read_flashpack_file_distributed: one read of a file for all ranks together."""

from __future__ import annotations

import hashlib
import json
import os
import traceback
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from .._options import load_options, parse_size
from .._reader import Reader
from .._torch import DTYPES
from .._torch.devices import copied_to_device
from .._torch.ranks import Ranks
from ..errors import ArgumentError, DistributedError, UnsupportedError
from ._blocks import empty_bytes
from ._read import open_blocks
from ._shares import Share, Step, contiguous_steps, round_up, single_reader_steps, window_steps
from ._storage import FlashTensorStorage
from .constants import (
    DEFAULT_CHUNK_BYTES,
    DEFAULT_NUM_STREAMS,
    DEFAULT_SHARD_BYTES,
    DEFAULT_SHARD_STRATEGY,
    SHARD_STRATEGIES,
    SHARD_STRATEGY_CONTIGUOUS,
    SHARD_STRATEGY_WINDOWS,
)
from .utils import timer

if TYPE_CHECKING:
    from .._options import Path

# What a rank reads in one step over gloo. Two of them, one being exchanged and one being read, are all the memory that
# it needs beyond the blocks.
GLOO_SHARD_BYTES = 32 * 2**20
DEFAULT_TIMEOUT = 300.0
_SINGLE_READER = "single reader"


def read_flashpack_file_distributed(
    path: Path,
    device: str | torch.device | None = None,
    src: int = 0,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    num_streams: int = DEFAULT_NUM_STREAMS,
    silent: bool = True,
    metadata: dict[str, Any] | None = None,
    sharded: bool = False,
    shard_strategy: str | None = None,
) -> tuple[FlashTensorStorage, dict[str, Any]]:
    """Reads a file once for all ranks of the default process group: every rank gets all blocks, and the metadata.

    Rank `src` reads and broadcasts; only it needs the file. With `sharded` every rank reads its part of the same file
    and all exchange theirs. In one process, or without a process group, it is a plain read. Rank 0's arguments and
    environment decide for all; $FLASHPACK_SHARD_BYTES is what a rank reads in one step.

    device: where the blocks go; by default the rank's GPU, where there is one.
    metadata: what to return in place of the footer.
    shard_strategy: "contiguous", one stretch of each block per rank, or "windows", side by side; by default
        $FLASHPACK_SHARD_STRATEGY, else contiguous.
    chunk_bytes, num_streams: accepted and not needed.

    When a rank fails, every rank raises. One that dies or stays away is given $PENSTOCK_DISTRIBUTED_TIMEOUT seconds
    (300).
    """
    from .deserialization import read_flashpack_file

    place = _default_device() if device is None else torch.device(device)
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return read_flashpack_file(path, place, chunk_bytes, num_streams, silent, metadata)
    with Ranks(os.fsdecode(path), place, _timeout()) as ranks:
        config = _agree_on_config(ranks, src, sharded, shard_strategy)
        with timer("read_metadata", silent):
            source, footer, blocks = _open_together(ranks, path, config)
        with timer("read_and_exchange", silent):
            storage = _read_together(ranks, source, blocks, config, place)
    return storage, json.loads(footer) if metadata is None else metadata


class _Config(NamedTuple):
    """What every rank does the same way."""

    strategy: str
    piece: int
    reader: int  # the rank that reads, when it is only one

    def steps(self, block_sizes: list[int], world: int) -> list[Step]:
        if self.strategy == SHARD_STRATEGY_CONTIGUOUS:
            return contiguous_steps(block_sizes, world, self.piece)
        if self.strategy == SHARD_STRATEGY_WINDOWS:
            return window_steps(block_sizes, world, self.piece)
        return single_reader_steps(block_sizes, world, self.piece, self.reader)

    def reads(self, rank: int) -> bool:
        return self.strategy != _SINGLE_READER or rank == self.reader


class _Block(NamedTuple):
    dtype: str
    nbytes: int


class _Source:
    """The file as its blocks."""

    def __init__(self, path: Path) -> None:
        self.footer, core = open_blocks(path)
        self._reader = Reader(core, "torch", partial(load_options))
        self.blocks = [_Block(tensor.dtype, tensor.nbytes) for tensor in self._lazy()]

    def _lazy(self) -> list[Any]:
        return [self._reader[str(number)] for number in range(len(self._reader))]

    def read(self, block: int, share: Share) -> torch.Tensor:
        """These bytes, and no others."""
        lazy = self._reader[str(block)]
        width = DTYPES[lazy.dtype].itemsize
        elements: torch.Tensor = lazy[share.begin // width : share.end // width]
        return elements.view(torch.uint8)


def resolve_shard_strategy(strategy: str | None = None) -> str:
    """The strategy's name, checked; None means the environment's, else contiguous."""
    chosen = strategy if strategy is not None else _environment("SHARD_STRATEGY") or DEFAULT_SHARD_STRATEGY
    word = chosen.strip().lower() if isinstance(chosen, str) else chosen
    if word not in SHARD_STRATEGIES:
        raise ArgumentError(f"unknown shard strategy {chosen!r}; expected one of {', '.join(SHARD_STRATEGIES)}")
    return word


def _environment(name: str) -> str | None:
    """Our own spelling comes first."""
    return os.environ.get(f"PENSTOCK_{name}") or os.environ.get(f"FLASHPACK_{name}")


def _piece(default: int) -> int:
    given = _environment("SHARD_BYTES")
    if given is None:
        return default
    try:
        return max(round_up(parse_size(given)), round_up(1))
    except ArgumentError:
        warnings.warn(f"the shard size {given!r} is not a number of bytes and is ignored", stacklevel=2)
        return default


def _timeout() -> float:
    given = os.environ.get("PENSTOCK_DISTRIBUTED_TIMEOUT")
    try:
        seconds = float(given) if given else DEFAULT_TIMEOUT
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ArgumentError(f"PENSTOCK_DISTRIBUTED_TIMEOUT is {given!r}, not a number of seconds")
    return seconds


def _default_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = os.environ.get("LOCAL_RANK")
    return torch.device("cuda", torch.cuda.current_device() if local_rank is None else int(local_rank))


def _agree_on_config(ranks: Ranks, src: int, sharded: bool, strategy: str | None) -> _Config:
    """Rank 0 decides, so that an argument or a variable that only some ranks have can't set them apart."""

    def decide() -> bytes:
        if ranks.rank != 0:
            return b""
        if not 0 <= src < ranks.world:
            raise ArgumentError(f"there is no rank {src} to read: the ranks are 0 to {ranks.world - 1}")
        piece = _piece(DEFAULT_SHARD_BYTES if ranks.uses_nccl else GLOO_SHARD_BYTES)
        return json.dumps((resolve_shard_strategy(strategy) if sharded else _SINGLE_READER, piece, src)).encode()

    return _Config(*json.loads(ranks.send(ranks.together(decide), 0)))


def _open_together(ranks: Ranks, path: Path, config: _Config) -> tuple[_Source | None, str, list[_Block]]:
    """Opens the file where it is read, and sees to it that all ranks mean the same one."""

    def open_source() -> _Source | None:
        return _Source(path) if config.reads(ranks.rank) else None

    source = ranks.together(open_source)
    if config.strategy == _SINGLE_READER:
        told = json.dumps((source.footer, source.blocks)).encode() if source is not None else b""
        footer, blocks = json.loads(ranks.send(told, config.reader))
        return source, footer, [_Block(*block) for block in blocks]
    assert source is not None
    different = ranks.first_that_differs(hashlib.sha256(source.footer.encode()).digest())
    if different is not None:
        raise DistributedError(f"{os.fsdecode(path)}: rank {different} has another file than rank 0")
    return source, source.footer, source.blocks


def _read_together(
    ranks: Ranks, source: _Source | None, blocks: list[_Block], config: _Config, device: torch.device
) -> FlashTensorStorage:
    landing = device if ranks.uses_nccl else torch.device("cpu")
    memory = ranks.together(partial(_allocate, blocks, landing))
    try:
        steps = config.steps([block.nbytes for block in blocks], ranks.world)
        _run_steps(ranks, source, memory, steps)
        # The last exchange may have gone well for some: all finish, or none does.
        ranks.together(ranks.wait_for_device)
        return ranks.together(partial(_finish, blocks, memory, device))
    except BaseException as error:
        memory.clear()
        _drop_locals(error)
        raise


def _drop_locals(error: BaseException | None) -> None:
    """The frames of a traceback would keep the blocks alive for as long as the error is."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__


def _allocate(blocks: list[_Block], device: torch.device) -> list[torch.Tensor]:
    for block in blocks:
        if block.dtype not in DTYPES:
            raise UnsupportedError(f"this version of torch has no {block.dtype}")
    return [empty_bytes(block.nbytes, device) for block in blocks]


def _run_steps(ranks: Ranks, source: _Source | None, memory: list[torch.Tensor], steps: list[Step]) -> None:
    """Exchanges each step while the next one is read."""

    def read(step: Step) -> torch.Tensor | None:
        share = step.shares[ranks.rank]
        if source is None or share.nbytes == 0:
            return None
        return _moved(source.read(step.block, share), memory[step.block].device)

    with ThreadPoolExecutor(1, thread_name_prefix="penstock-read") as reader:
        pending: Future[torch.Tensor | None] | None = reader.submit(read, steps[0]) if steps else None
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            assert pending is not None
            piece = ranks.together(pending.result)
            pending = reader.submit(read, following) if following is not None else None
            ranks.exchange(memory[step.block], step.shares, piece, is_even=step.is_even)


def _finish(blocks: list[_Block], memory: list[torch.Tensor], device: torch.device) -> FlashTensorStorage:
    return FlashTensorStorage(
        [_moved(data, device).view(DTYPES[block.dtype]) for block, data in zip(blocks, memory, strict=True)]
    )


def _moved(data: torch.Tensor, device: torch.device) -> torch.Tensor:
    if data.device.type == device.type and device.index in (None, data.device.index):
        return data
    there = torch.empty_like(data, device=device)
    copied_to_device(there, data)
    return there
