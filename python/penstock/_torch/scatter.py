"""Loads in which ranks read every byte once and send it to who wants it.

Every rank knows what every other wants, and so who reads which rows, in which batches, and how long each message is:
nothing of that is sent. In each step a rank has one batch, of which every other rank gets one message; meanwhile a
thread reads the next batch. A step begins with one small all-reduce, in which ranks learn whether all could read.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .._counters import add_counters
from .._dtypes import BITS
from .._parts import length_of, part_shape
from ..errors import CancelledError
from .pieces import Grid, Piece, batches, grid_of, part_row_nbytes, pick, rows_of, spread, wanted_rows
from .tensors import elements, from_bytes

if TYPE_CHECKING:
    from .. import _core
    from .._frameworks import Info, Landing, Row
    from .._parts import Part
    from .._progress import Callback
    from .rank_group import RankGroup

CALL = "load(plan='scatter')"
# Bytes of a batch: those of all ranks together arrive at each in one step.
_STEP_BYTES = 128 * 2**20
_LEAST_BATCH = 4 * 2**20
_MOST_BATCH = 64 * 2**20

Parts = dict[int, "Part"]  # of the tensors, by their numbers, that are not wanted whole


class ToScatter(NamedTuple):
    """What a rank wants of a checkpoint, and where it is to be."""

    infos: Sequence[Info]
    parts: dict[str, Part]
    reader: _core.Reader
    options: _core.LoadOptions
    dtype: str | None  # what the options convert to
    landing: Landing
    as_arrays: bool  # NumPy's


def scatter_load(
    group: RankGroup, wanted: ToScatter, callback: Callback | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """This rank's tensors and statistics. Every rank of the group calls it, with the same tensors."""
    begin = time.monotonic()
    work = _Scatter(group, wanted)
    tensors = work.run(callback)
    counters = {**work.counters, "tensors": len(tensors), "seconds": time.monotonic() - begin}
    return tensors, {**counters, "bytes_sent": work.bytes_sent, "bytes_received": work.bytes_received}


def gather_parts(group: RankGroup, call: str, infos: Sequence[Info], parts: dict[str, Part]) -> list[Parts]:
    """What every rank wants."""
    own = {number: parts[info[0]] for number, info in enumerate(infos) if info[0] in parts}
    found: list[Parts] = []
    for content in group.gather(call, json.dumps(own).encode()):
        table: dict[str, list[list[list[int]]]] = json.loads(content)
        found.append(
            {
                int(number): tuple(tuple((each[0], each[1], each[2]) for each in ranges) for ranges in dims)
                for number, dims in table.items()
            }
        )
    return found


def digest_of(infos: Iterable[Info], *words: str | None) -> bytes:
    """The same on ranks that load the same tensors in the same way."""
    text = json.dumps([[info[:3] for info in infos], words])
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=16).digest()


def shares_of(infos: Sequence[Info], grids: dict[int, Grid], everyone: Sequence[Parts]) -> list[list[Piece]]:
    """The rows that each rank reads."""
    rows = {number: wanted_rows(grid, [parts.get(number, ()) for parts in everyone]) for number, grid in grids.items()}
    return spread(rows, grids, len(everyone))


class Batch(NamedTuple):
    """Bytes that were read, each piece's for itself."""

    pieces: list[Piece]
    data: list[torch.Tensor]
    counters: dict[str, Any]


class PieceReader:
    """Reads pieces of tensors as bytes."""

    def __init__(self, reader: _core.Reader, options: _core.LoadOptions, infos: Sequence[Info]) -> None:
        self._reader = reader
        self._options = options
        self._infos = infos

    def read(self, pieces: list[Piece], grids: dict[int, Grid]) -> Batch:
        names = [self._infos[piece.number][0] for piece in pieces]
        parts = {
            name: part for name, piece in zip(names, pieces, strict=True) if (part := piece.part(grids[piece.number]))
        }
        found, counters = self._reader.load(names, self._options, None, _as_bytes, None, parts)
        return Batch(pieces, [found[name] for name in names], counters)

    def result_types(self) -> dict[str, str]:
        """What the types of the file become, by the engine's own word: nothing of tensors is loaded, with its type."""
        samples = {info[1]: info for info in self._infos}
        parts: dict[str, Part] = {info[0]: (((0, 0, 1),),) for info in samples.values() if info[2]}
        names = [info[0] for info in samples.values()]
        found, _ = self._reader.load(names, self._options, None, _types, None, parts)
        return {dtype: found[info[0]] for dtype, info in samples.items()}


def _as_bytes(memories: Sequence[_core.Memory], rows: Iterable[Row]) -> dict[str, torch.Tensor]:
    return {
        name: elements(memories[memory], torch.uint8, (nbytes,), offset, nbytes)
        for name, _, _, memory, offset, nbytes in rows
    }


def _types(_: Sequence[_core.Memory], rows: Iterable[Row]) -> dict[str, str]:
    return {name: dtype for name, dtype, *_ in rows}


class _Scatter:
    def __init__(self, group: RankGroup, wanted: ToScatter) -> None:
        self._group = group
        self._wanted = wanted
        self._pieces = PieceReader(wanted.reader, wanted.options, wanted.infos)
        self._arriving: dict[int, _Arriving] = {}
        self._made: dict[int, Any] = {}
        self.counters: dict[str, Any] = {}
        self.bytes_sent = self.bytes_received = 0

    def run(self, callback: Callback | None) -> dict[str, Any]:
        group, infos = self._group, self._wanted.infos
        group.agree(CALL, digest_of(infos, self._wanted.dtype))
        self._types = group.together(CALL, self._pieces.result_types, b"types")
        self._everyone = gather_parts(group, CALL, infos, self._wanted.parts)
        stored = self._stored_grids()
        self._grids = {
            number: grid._replace(width=BITS[self._types[infos[number][1]]] * grid.per_group // 8)
            for number, grid in stored.items()
        }
        group.together(CALL, lambda: self._load_own(stored), b"own")
        limit = min(max(_STEP_BYTES // group.size, _LEAST_BATCH), _MOST_BATCH)
        self._plans = [batches(share, stored, limit) for share in shares_of(infos, stored, self._everyone)]
        self._run_steps(stored, callback)
        return {info[0]: self._made[number] for number, info in enumerate(infos)}

    def _stored_grids(self) -> dict[int, Grid]:
        """The tensors that are spread over the ranks; the others each rank reads itself."""
        found: dict[int, Grid] = {}
        for number, (_, dtype, shape, *_, nbytes) in enumerate(self._wanted.infos):
            grid = grid_of(dtype, shape) if nbytes > 0 else None
            if grid is not None and (grid.per_group == 1 or self._types[dtype] == dtype):
                found[number] = grid
        return found

    def _load_own(self, spread_out: dict[int, Grid]) -> None:
        """What is not spread, and tensors of which this rank wants nothing."""
        wanted = self._wanted
        numbers = {
            info[0]: number
            for number, info in enumerate(wanted.infos)
            if number not in spread_out or not prod(part_shape(info[2], wanted.parts.get(info[0], ())))
        }
        parts = {name: wanted.parts[name] for name in numbers if name in wanted.parts}
        landing = wanted.landing
        found, self.counters = wanted.reader.load(
            list(numbers), wanted.options, None, landing.build, landing.allocator, parts
        )
        self._made.update((numbers[name], tensor) for name, tensor in found.items())

    def _run_steps(self, stored: dict[int, Grid], callback: Callback | None) -> None:
        own = self._plans[self._group.rank]
        total = sum((piece.end - piece.begin) * stored[piece.number].row_nbytes for batch in own for piece in batch)
        done = 0
        with ThreadPoolExecutor(1, "penstock-scatter") as thread:
            reading = thread.submit(self._pieces.read, own[0], stored) if own else None
            for step in range(max(map(len, self._plans), default=0)):
                landed = partial(_landed, reading, callback, done, total)
                batch = self._group.together(CALL, landed, b"%d" % step)
                more = step + 1 < len(own)
                reading = thread.submit(self._pieces.read, own[step + 1], stored) if more else None
                if batch is not None:
                    self.counters = add_counters(self.counters, batch.counters)
                    done += batch.counters["bytes"]
                self._exchange(step, batch)
        if callback is not None:
            callback(total, total)

    def _exchange(self, step: int, batch: Batch | None) -> None:
        """Sends this rank's batch to those who want of it, and takes what the others send."""
        group = self._group
        incoming = {
            rank: self._plans[rank][step]
            for rank in range(group.size)
            if rank != group.rank and step < len(self._plans[rank])
        }
        buffers = {
            rank: torch.empty(self._message_nbytes(pieces, group.rank), dtype=torch.uint8)
            for rank, pieces in incoming.items()
        }
        outgoing = {} if batch is None else self._messages(batch)
        with group.reachable(CALL):
            lane = group.lane
            pending = [lane.send([data], rank, 0) for rank, data in outgoing.items() if data.numel() > 0]
            pending += [lane.recv([data], rank, 0) for rank, data in buffers.items() if data.numel() > 0]
            if batch is not None:
                self._keep(batch)
            group.finish(pending)
        self.bytes_sent += sum(data.numel() for data in outgoing.values())
        self.bytes_received += sum(data.numel() for data in buffers.values())
        for rank, pieces in incoming.items():
            self._unpack(pieces, buffers[rank])

    def _messages(self, batch: Batch) -> dict[int, torch.Tensor]:
        """What each other rank wants of a batch, in one tensor; ranks that want the same share it."""
        made: list[tuple[list[Part], torch.Tensor]] = []
        found: dict[int, torch.Tensor] = {}
        for rank in range(self._group.size):
            if rank == self._group.rank:
                continue
            wants = [self._everyone[rank].get(piece.number, ()) for piece in batch.pieces]
            message = next((data for others, data in made if others == wants), None)
            if message is None:
                message = torch.empty(self._message_nbytes(batch.pieces, rank), dtype=torch.uint8)
                self._pack(batch, wants, message)
                made.append((wants, message))
            found[rank] = message
        return found

    def _pack(self, batch: Batch, wants: list[Part], message: torch.Tensor) -> None:
        at = 0
        for piece, data, part in zip(batch.pieces, batch.data, wants, strict=True):
            grid = self._grids[piece.number]
            for picked in pick(data, grid, part, rows_of(grid, part, piece)[0]):
                message[at : at + picked.numel()].view(picked.shape).copy_(picked)
                at += picked.numel()

    def _keep(self, batch: Batch) -> None:
        """What this rank wants of its own batch."""
        for piece, data in zip(batch.pieces, batch.data, strict=True):
            grid, part = self._grids[piece.number], self._everyone[self._group.rank].get(piece.number, ())
            rows, before = rows_of(grid, part, piece)
            at = before * part_row_nbytes(grid, part)
            for picked in pick(data, grid, part, rows):
                self._put(piece.number, at, picked)
                at += picked.numel()

    def _unpack(self, pieces: list[Piece], message: torch.Tensor) -> None:
        at = 0
        for piece in pieces:
            grid, part = self._grids[piece.number], self._everyone[self._group.rank].get(piece.number, ())
            rows, before = rows_of(grid, part, piece)
            width = part_row_nbytes(grid, part)
            nbytes = length_of(rows) * width
            self._put(piece.number, before * width, message[at : at + nbytes])
            at += nbytes

    def _message_nbytes(self, pieces: list[Piece], rank: int) -> int:
        total = 0
        for piece in pieces:
            grid, part = self._grids[piece.number], self._everyone[rank].get(piece.number, ())
            total += length_of(rows_of(grid, part, piece)[0]) * part_row_nbytes(grid, part)
        return total

    def _put(self, number: int, at: int, data: torch.Tensor) -> None:
        """Bytes of a tensor; it is made, and moved to its device, when all are there."""
        if data.numel() == 0:
            return
        arriving = self._arriving.get(number)
        if arriving is None:
            grid, part = self._grids[number], self._everyone[self._group.rank].get(number, ())
            nbytes = length_of(grid.ranges(0, part)) * part_row_nbytes(grid, part)
            arriving = self._arriving[number] = _Arriving(torch.empty(nbytes, dtype=torch.uint8), nbytes)
        arriving.data[at : at + data.numel()].view(data.shape).copy_(data)
        arriving.missing -= data.numel()
        if arriving.missing == 0:
            self._made[number] = self._tensor(number, self._arriving.pop(number).data)

    def _tensor(self, number: int, data: torch.Tensor) -> Any:
        name, dtype, shape, *_ = self._wanted.infos[number]
        own_shape = part_shape(shape, self._wanted.parts.get(name, ()))
        landing = self._wanted.landing
        if self._wanted.as_arrays:
            array: Any = data.numpy()
            return landing.build([array], [(name, self._types[dtype], own_shape, 0, 0, len(array))])[name]
        device = landing.device
        return from_bytes(data if device is None else data.to(device), self._types[dtype], own_shape)


class _Arriving:
    def __init__(self, data: torch.Tensor, missing: int) -> None:
        self.data = data
        self.missing = missing


def _landed(reading: Future[Batch] | None, callback: Callback | None, done: int, total: int) -> Batch | None:
    """What was read meanwhile; the progress callable is asked before."""
    if callback is not None and callback(done, total) is False:
        raise CancelledError("the progress callable asked to stop")
    return None if reading is None else reading.result()
