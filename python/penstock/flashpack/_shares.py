"""Which rank reads which bytes, and when: pure arithmetic that every rank repeats and all agree on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from .constants import SHARD_ALIGN_BYTES


class Share(NamedTuple):
    """Bytes of a block, half open; those of one rank in one step."""

    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """How many."""
        return self.end - self.begin


class Step(NamedTuple):
    """What is read and exchanged at once: a share of one block for each rank, some of them empty."""

    block: int
    shares: tuple[Share, ...]

    @property
    def is_even(self) -> bool:
        """Whether the shares are of one size and lie side by side, so that a single all-gather can exchange them."""
        return self.shares[0].nbytes > 0 and all(
            left.end == right.begin and left.nbytes == right.nbytes for left, right in pairwise(self.shares)
        )


def contiguous_steps(block_sizes: Sequence[int], world: int, piece: int) -> list[Step]:
    """Every rank reads one stretch of each block from end to end, at most `piece` bytes in a step."""
    steps = []
    for block, nbytes in enumerate(block_sizes):
        stretches = [list(_pieces(stretch, piece)) for stretch in _split(Share(0, nbytes), world)]
        for number in range(max(map(len, stretches))):
            shares = (pieces[number] if number < len(pieces) else Share(0, 0) for pieces in stretches)
            steps.append(Step(block, tuple(shares)))
    return steps


def window_steps(block_sizes: Sequence[int], world: int, piece: int) -> list[Step]:
    """All ranks read side by side: a window of `piece` bytes for each of them, then the next."""
    return [
        Step(block, tuple(_split(window, world)))
        for block, nbytes in enumerate(block_sizes)
        for window in _pieces(Share(0, nbytes), world * piece)
    ]


def single_reader_steps(block_sizes: Sequence[int], world: int, piece: int, reader: int) -> list[Step]:
    """One rank reads everything."""
    nothing = Share(0, 0)
    return [
        Step(block, tuple(share if rank == reader else nothing for rank in range(world)))
        for block, nbytes in enumerate(block_sizes)
        for share in _pieces(Share(0, nbytes), piece)
    ]


def _split(whole: Share, parts: int) -> list[Share]:
    """Equal parts but for the rounding, which the last ones pay for; they may be empty."""
    size = round_up(-(-whole.nbytes // parts))
    edges = [min(whole.begin + number * size, whole.end) for number in range(parts + 1)]
    return [Share(begin, end) for begin, end in pairwise(edges)]


def _pieces(whole: Share, size: int) -> Iterator[Share]:
    for begin in range(whole.begin, whole.end, size):
        yield Share(begin, min(begin + size, whole.end))


def round_up(nbytes: int) -> int:
    """To the next boundary: direct I/O likes those, and they are multiples of every element's size."""
    return -(-nbytes // SHARD_ALIGN_BYTES) * SHARD_ALIGN_BYTES
