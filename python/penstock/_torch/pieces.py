"""Which rank reads what when ranks read every byte once: rows of tensors, spread evenly, in batches. Arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch

from .._dtypes import BITS
from .._parts import cut, length_of

if TYPE_CHECKING:
    from .._parts import Part, Range


class Grid(NamedTuple):
    """A tensor as rows of bytes: the shape, whose last dimension counts groups of `width` bytes, and what of it is one.

    per_group: elements of the last dimension in a group; more than one for types of less than a byte.
    """

    shape: tuple[int, ...]
    width: int
    per_group: int

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row."""
        return prod(self.shape[1:]) * self.width

    def ranges(self, dim: int, part: Part) -> Sequence[Range]:
        """What a part, in elements, has of a dimension."""
        if dim >= len(part) or not part[dim]:
            return ((0, self.shape[dim], 1),)
        if dim < len(self.shape) - 1 or self.per_group == 1:
            return part[dim]
        # Ranges of sub-byte types begin and end at whole bytes, or at the padded end.
        return [(begin // self.per_group, -(-end // self.per_group), step) for begin, end, step in part[dim]]


def grid_of(dtype: str, shape: tuple[int, ...]) -> Grid | None:
    """None for a type of less than a byte whose rows don't end at whole bytes."""
    bits = BITS[dtype]
    shape = shape or (1,)
    if bits >= 8:
        return Grid(shape, bits // 8, 1)
    per_group = 2 if bits == 4 else 4  # of 6 bits: three bytes
    if shape[-1] % per_group:
        return None
    return Grid((*shape[:-1], shape[-1] // per_group), bits * per_group // 8, per_group)


class Piece(NamedTuple):
    """Rows of the tensor that has this number."""

    number: int
    begin: int
    end: int

    def part(self, grid: Grid) -> Part:
        """What is read for it, in elements; () for the whole tensor."""
        if (self.begin, self.end) == (0, grid.shape[0]):
            return ()
        unit = grid.per_group if len(grid.shape) == 1 else 1
        return (((self.begin * unit, self.end * unit, 1),),)


def wanted_rows(grid: Grid, parts: Iterable[Part]) -> tuple[int, int]:
    """From the first to the last row that somebody wants."""
    found = [
        each
        for part in parts
        if all(length_of(grid.ranges(dim, part)) for dim in range(len(grid.shape)))
        for each in grid.ranges(0, part)
    ]
    return (min(each[0] for each in found), max(each[1] for each in found)) if found else (0, 0)


def spread(rows: Mapping[int, tuple[int, int]], grids: Mapping[int, Grid], world: int) -> list[list[Piece]]:
    """The rows that each rank reads: as many bytes each as rows allow, in the order of the tensors."""
    total = sum((end - begin) * grids[number].row_nbytes for number, (begin, end) in rows.items())
    shares: list[list[Piece]] = []
    for rank in range(world):
        first, last = total * rank // world, total * (rank + 1) // world
        position = 0
        own: list[Piece] = []
        for number, (begin, end) in rows.items():
            width = grids[number].row_nbytes
            low, high = (max(-(-(edge - position) // width), 0) if width else 0 for edge in (first, last))
            if min(high, end - begin) > low:
                own.append(Piece(number, begin + low, min(begin + high, end)))
            position += (end - begin) * width
        shares.append(own)
    return shares


def batches(pieces: Iterable[Piece], grids: Mapping[int, Grid], limit: int) -> list[list[Piece]]:
    """Cuts pieces into lists of at most so many bytes, but always one row. No tensor is twice in a list."""
    found: list[list[Piece]] = []
    room = 0
    for number, begin, end in pieces:
        width = max(grids[number].row_nbytes, 1)
        while begin < end:
            if room < width:
                found.append([])
                room = limit
            count = min(end - begin, max(room // width, 1))
            found[-1].append(Piece(number, begin, begin + count))
            begin += count
            room -= count * width
    return found


def rows_of(grid: Grid, part: Part, piece: Piece) -> tuple[list[Range], int]:
    """The rows of a piece that a part has, counted from the piece's first, and how many the part has before them."""
    inside: list[Range] = []
    before = 0
    for each in grid.ranges(0, part):
        elements = range(*each)
        skipped = len(range(elements.start, min(piece.begin, elements.stop), elements.step))
        before += skipped
        reached = len(range(elements.start, min(piece.end, elements.stop), elements.step))
        inside += [(begin - piece.begin, end - piece.begin, step) for begin, end, step in cut([each], skipped, reached)]
    return inside, before


def part_row_nbytes(grid: Grid, part: Part) -> int:
    """Bytes of one row of a part."""
    return prod(length_of(grid.ranges(dim, part)) for dim in range(1, len(grid.shape))) * grid.width


def pick(data: torch.Tensor, grid: Grid, part: Part, rows: Sequence[Range]) -> Iterator[torch.Tensor]:
    """What a part has of some rows of a piece's bytes, in order, as views where it can."""
    count = data.numel() // grid.row_nbytes
    shaped = data.view(count, *grid.shape[1:], grid.width)
    for dim in range(1, len(grid.shape)):
        shaped = _picked(shaped, dim, grid.ranges(dim, part))
    for begin, end, step in rows:
        yield shaped[begin:end:step]


def _picked(data: torch.Tensor, dim: int, ranges: Sequence[Range]) -> torch.Tensor:
    if list(ranges) == [(0, data.shape[dim], 1)]:
        return data
    found = [data.transpose(0, dim)[slice(*each)].transpose(0, dim) for each in ranges]
    return found[0] if len(found) == 1 else torch.cat(found, dim)
