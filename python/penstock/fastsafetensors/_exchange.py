"""How tensors go from the rank that has read them to the others: broadcasts, and a share for each rank.

All that is moved is bytes, so every element type goes, also those that no collective knows. Ranks on one machine take
their shares from the owner's memory. Else large tensors go as they lie, by the group's connections; small ones of one
owner go together, in one buffer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from .._torch.neighbours import new_bytes, pull
from ..errors import ArgumentError, DistributedError
from ._exchange_group import RankGroup
from .allocation import count_tensor

# From here on two more messages take less time than a second copy.
_PULLED_BYTES = 2**20

_POLL_SECONDS = 0.0002
WHOLE = -1  # the dimension that means: every rank gets all


@dataclass(frozen=True)
class Wanted:
    """A tensor to be moved: what it is, in torch's elements, and the dimension that it is split in."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    dim: int
    unit: int = 1  # elements of the file in one of torch's, in the last dimension

    def shape_for(self, rank: int, size: int) -> tuple[int, ...]:
        """What a rank gets."""
        if self.dim == WHOLE:
            return self.shape
        begin, end = self._bounds(rank, size)
        return (*self.shape[: self.dim], end - begin, *self.shape[self.dim + 1 :])

    def part_for(self, tensor: torch.Tensor, rank: int, size: int) -> torch.Tensor:
        """A rank's part, as a view of bytes: torch can't copy elements of every type."""
        if self.dim == WHOLE:
            return flat_bytes(tensor)
        begin, end = self._in_bytes(*self._bounds(rank, size))
        return tensor.detach().view(torch.uint8).narrow(self.dim, begin, end - begin)

    def pulled_for(self, process: int, address: int, rank: int, size: int) -> torch.Tensor:
        """A rank's part as bytes, from the process that has the tensor there."""
        if self.dim == WHOLE:
            return pull(process, address, (self.nbytes,), 0, 0, self.nbytes)
        shape = (*self.shape[:-1], self.shape[-1] * self.dtype.itemsize)
        return pull(process, address, shape, self.dim, *self._in_bytes(*self._bounds(rank, size)))

    def nbytes_for(self, rank: int, size: int) -> int:
        """Bytes of a rank's part."""
        return math.prod(self.shape_for(rank, size)) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return math.prod(self.shape) * self.dtype.itemsize

    def _in_bytes(self, begin: int, end: int) -> tuple[int, int]:
        """Bounds in the view as bytes, whose last dimension counts these."""
        width = self.dtype.itemsize if self.dim == len(self.shape) - 1 else 1
        return begin * width, end * width

    def _bounds(self, rank: int, size: int) -> tuple[int, int]:
        """Blocks of equal size, rounded up: the last ranks get less, or nothing."""
        unit = self.unit if self.dim == len(self.shape) - 1 else 1
        length = self.shape[self.dim] * unit
        block = -(-length // size)
        begin, end = min(rank * block, length), min((rank + 1) * block, length)
        if begin % unit or end % unit:
            raise ArgumentError(
                f"{self.name}: {length} elements of {8 // unit} bits can't be split between {size} ranks: "
                f"a block of {block} ends inside a byte"
            )
        return begin // unit, end // unit


def check_split(wanted: Wanted, size: int) -> None:
    """Refuses a dimension that the tensor has not got, or in which it can't be split."""
    if wanted.dim == WHOLE:
        return
    if not 0 <= wanted.dim < len(wanted.shape):
        raise ArgumentError(
            f"{wanted.name}: there is no dimension {wanted.dim} in the shape {list(wanted.shape)} (-1: all, everywhere)"
        )
    for rank in range(size):
        wanted.shape_for(rank, size)


class Transport(Protocol):
    """Moves bytes between the ranks of a group, all in the memory of one device."""

    device: torch.device

    def broadcast(self, data: torch.Tensor, owner: int) -> None:
        """Fills `data` of all ranks with the owner's."""

    def scatter(self, pieces: Sequence[torch.Tensor] | None, own: torch.Tensor, owner: int) -> None:
        """Fills every other rank's `own` with its piece of the owner's; of any sizes. The owner keeps its own."""

    def push(self, data: torch.Tensor, owner: int, destination: int) -> None:
        """Fills the destination's `data` with the owner's."""


class GlooTransport:
    """Over the group's own gloo connections; tensors of other devices pass the host's memory."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self.device = torch.device("cpu")

    def broadcast(self, data: torch.Tensor, owner: int) -> None:
        if data.numel() > 0:
            self._group.lane.broadcast(data, owner).wait()

    def scatter(self, pieces: Sequence[torch.Tensor] | None, own: torch.Tensor, owner: int) -> None:
        lane, rank = self._group.lane, self._group.rank
        if pieces is not None:
            pending = [lane.send([piece], to, 0) for to, piece in enumerate(pieces) if to != rank and piece.numel() > 0]
            self._group.finish(pending)
        elif own.numel() > 0:
            self._group.finish([lane.recv([own], owner, 0)])

    def push(self, data: torch.Tensor, owner: int, destination: int) -> None:
        if data.numel() == 0:
            return
        if self._group.rank == owner:
            self._group.finish([self._group.lane.send([data], destination, 0)])
        elif self._group.rank == destination:
            self._group.finish([self._group.lane.recv([data], owner, 0)])


class NcclTransport:
    """Over the caller's NCCL group, in the device's memory. NCCL only queues: every call waits, but not for ever."""

    def __init__(self, group: RankGroup, device: torch.device) -> None:
        self._group = group
        self.device = device

    def broadcast(self, data: torch.Tensor, owner: int) -> None:
        if data.numel() > 0:
            dist.broadcast(data, self._global(owner), group=self._group.process_group)
            self._wait()

    def scatter(self, pieces: Sequence[torch.Tensor] | None, own: torch.Tensor, owner: int) -> None:
        if pieces is None:
            self._batch([(dist.irecv, own, owner)])
        else:
            self._batch([(dist.isend, piece, to) for to, piece in enumerate(pieces) if to != self._group.rank])

    def push(self, data: torch.Tensor, owner: int, destination: int) -> None:
        if self._group.rank == owner:
            self._batch([(dist.isend, data, destination)])
        elif self._group.rank == destination:
            self._batch([(dist.irecv, data, owner)])

    def _batch(self, moves: list[tuple[Any, torch.Tensor, int]]) -> None:
        group = self._group.process_group
        operations = [
            dist.P2POp(action, data, self._global(peer), group) for action, data, peer in moves if data.numel() > 0
        ]
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            self._wait()

    def _global(self, rank: int) -> int:
        return dist.get_global_rank(self._group.process_group, rank)

    def _wait(self) -> None:
        stream, deadline = torch.cuda.current_stream(self.device), time.monotonic() + self._group.timeout
        while not stream.query():
            if time.monotonic() > deadline:
                raise DistributedError(f"NCCL did not finish within {self._group.timeout:g} s")
            time.sleep(_POLL_SECONDS)


def make_transport(group: RankGroup, device: torch.device) -> Transport:
    """NCCL for tensors on GPUs of a group that has it, else gloo."""
    if device.type == "cuda" and "nccl" in str(dist.get_backend(group.process_group)):
        return NcclTransport(group, device)
    return GlooTransport(group)


class Exchange:
    """Moves tensors between the ranks of a group, and leaves them on `device`."""

    def __init__(self, group: RankGroup, device: torch.device) -> None:
        self._group = group
        self._device = device
        self._transport = make_transport(group, device)
        self._processes = group.processes() if device.type == "cpu" else None

    @property
    def is_local(self) -> bool:
        """Whether ranks take their shares from each other's memory, and nothing is sent."""
        return self._processes is not None

    def cut(self, wanted: Wanted, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's part of a tensor that it has whole."""
        return self._own(wanted, tensor)

    def deliver(
        self, wanted: Sequence[Wanted], owner: int, sources: Sequence[torch.Tensor] | None
    ) -> list[torch.Tensor]:
        """This rank's parts of tensors that the owner has: `sources`, there alone, in the same order.

        Where a tensor is given to all, the owner's is the source itself; every other result has memory of its own.
        """
        if self._processes is not None and sum(one.nbytes for one in wanted) >= _PULLED_BYTES:
            return self._pull(self._processes[owner], wanted, owner, sources)
        if all(one.dim == WHOLE for one in wanted):
            return self._broadcast(wanted, owner, sources)
        return self._scatter(wanted, owner, sources)

    def push(self, wanted: Wanted, owner: int, destination: int, source: torch.Tensor | None) -> torch.Tensor | None:
        """The tensor, at its destination."""
        rank = self._group.rank
        if rank not in (owner, destination):
            return None
        if owner == destination:
            return source
        data = self._bytes(source) if source is not None else self._empty(wanted.nbytes)
        self._transport.push(data, owner, destination)
        return self._made(data, wanted, wanted.shape) if rank == destination else None

    def _pull(
        self, process: int, wanted: Sequence[Wanted], owner: int, sources: Sequence[torch.Tensor] | None
    ) -> list[torch.Tensor]:
        """Everybody takes its parts from the owner's memory, which keeps them there until all have."""
        lying = None if sources is None else [tensor.detach().contiguous() for tensor in sources]
        places = torch.tensor([0] * len(wanted) if lying is None else [tensor.data_ptr() for tensor in lying])
        self._transport.broadcast(places, owner)

        def take() -> list[torch.Tensor]:
            rank, size = self._group.rank, self._group.size
            if lying is not None:
                return [self._own(*one) for one in zip(wanted, lying, strict=True)]
            return [
                self._made(one.pulled_for(process, int(place), rank, size), one, one.shape_for(rank, size))
                for one, place in zip(wanted, places, strict=True)
            ]

        found: list[torch.Tensor] = self._group.together(f"taking {wanted[0].name}", take)
        return found

    def _own(self, wanted: Wanted, tensor: torch.Tensor) -> torch.Tensor:
        """The owner's own part: a copy, as a view would keep all of the source."""
        if wanted.dim == WHOLE:
            return tensor
        rank, size = self._group.rank, self._group.size
        part = wanted.part_for(tensor, rank, size)
        if self._device.type == "cpu":
            copy = new_bytes(part.numel())
            copy.view(part.shape).copy_(part)
        else:
            copy = part.clone(memory_format=torch.contiguous_format).reshape(-1)
        return self._made(copy, wanted, wanted.shape_for(rank, size))

    def _broadcast(
        self, wanted: Sequence[Wanted], owner: int, sources: Sequence[torch.Tensor] | None
    ) -> list[torch.Tensor]:
        sizes = [one.nbytes for one in wanted]
        data = self._empty(sum(sizes)) if sources is None else self._packed(sources)
        self._transport.broadcast(data, owner)
        if sources is not None:
            return list(sources)
        return self._unpacked(data, wanted, sizes, [one.shape for one in wanted])

    def _scatter(
        self, wanted: Sequence[Wanted], owner: int, sources: Sequence[torch.Tensor] | None
    ) -> list[torch.Tensor]:
        rank, size = self._group.rank, self._group.size
        shapes = [one.shape_for(rank, size) for one in wanted]
        if sources is None:
            sizes = [one.nbytes_for(rank, size) for one in wanted]
            own = self._empty(sum(sizes))
            self._transport.scatter(None, own, owner)
            return self._unpacked(own, wanted, sizes, shapes)
        pieces = [
            self._packed([one.part_for(tensor, to, size) for one, tensor in zip(wanted, sources, strict=True)])
            if to != rank
            else self._empty(0)
            for to in range(size)
        ]
        self._transport.scatter(pieces, self._empty(0), owner)
        return [self._own(*one) for one in zip(wanted, sources, strict=True)]

    def _packed(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Side by side as bytes; one alone as it lies, where that is in a row."""
        if len(tensors) == 1:
            return self._bytes(tensors[0])
        return torch.cat([self._bytes(tensor) for tensor in tensors])

    def _bytes(self, tensor: torch.Tensor) -> torch.Tensor:
        return flat_bytes(tensor).to(self._transport.device)

    def _empty(self, nbytes: int) -> torch.Tensor:
        if self._transport.device.type == "cpu":
            return new_bytes(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8, device=self._transport.device)

    def _unpacked(
        self, data: torch.Tensor, wanted: Sequence[Wanted], sizes: Sequence[int], shapes: Sequence[tuple[int, ...]]
    ) -> list[torch.Tensor]:
        if len(wanted) == 1:
            return [self._made(data, wanted[0], shapes[0])]
        # Clones: each tensor is to have a storage of its own, aligned for its type.
        parts = [part.clone() for part in torch.split(data, list(sizes))]
        return [self._made(*made) for made in zip(parts, wanted, shapes, strict=True)]

    def _made(self, data: torch.Tensor, wanted: Wanted, shape: tuple[int, ...]) -> torch.Tensor:
        made = data.to(self._device).view(wanted.dtype).view(shape)
        count_tensor(made)
        return made


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements in a row, as bytes."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
