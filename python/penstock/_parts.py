"""Parts of tensors: for each dimension the ranges that are wanted of it. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ._dtypes import BITS
from .errors import ArgumentError

if TYPE_CHECKING:
    from ._frameworks import Info

Range = tuple[int, int, int]  # begin, end, step

# The ranges of each dimension, ascending and apart, whose elements are put side by side. No ranges: the whole
# dimension, as of dimensions at the end that are not there. Nothing of a dimension is the one range (0, 0, 1).
Part = Sequence[Sequence[Range]]

_NOTHING: tuple[Range, ...] = ((0, 0, 1),)


def chunk_bounds(size: int, count: int, index: int) -> tuple[int, int]:
    """One of `count` pieces as torch.chunk cuts them: of one size, the last ones shorter or empty."""
    length = -(-size // count)
    return min(index * length, size), min((index + 1) * length, size)


def length_of(ranges: Sequence[Range]) -> int:
    """How many elements ranges have."""
    return sum(len(range(*each)) for each in ranges)


def cut(ranges: Sequence[Range], begin: int, end: int) -> list[Range]:
    """The elements from `begin` to `end` of those that the ranges list."""
    found: list[Range] = []
    passed = 0
    for each in ranges:
        elements = range(*each)
        kept = elements[max(begin - passed, 0) : max(end - passed, 0)]
        if kept:
            found.append((kept[0], kept[-1] + 1, each[2]))
        passed += len(elements)
    return found


def chunk(ranges: Sequence[Range], count: int, index: int) -> list[Range]:
    """One of `count` pieces of what the ranges list."""
    return cut(ranges, *chunk_bounds(length_of(ranges), count, index))


def strided_chunk(ranges: Sequence[Range], count: int, index: int, split_factor: int) -> list[Range]:
    """One of `count` pieces of each of `split_factor` blocks: fused weights, and FSDP over tensor parallelism."""
    blocks = (chunk(ranges, split_factor, block) for block in range(split_factor))
    return [each for block in blocks for each in chunk(block, count, index)]


def normal_part(shape: Sequence[int], dims: Sequence[Sequence[Range]]) -> Part:
    """The same part in the one form that it has; () for the whole tensor. Here no ranges mean: nothing."""
    part = [_normal_ranges(size, ranges) for size, ranges in zip(shape, dims, strict=False)]
    while part and not part[-1]:
        part.pop()
    return tuple(part)


def _normal_ranges(size: int, ranges: Sequence[Range]) -> tuple[Range, ...]:
    found: list[Range] = []
    for begin, end, step in ranges:
        elements = range(begin, end, step)
        if not elements:
            continue
        begin, end, step = elements[0], elements[-1] + 1, step if len(elements) > 1 else 1
        if found and step == 1 and found[-1][2] == 1 and found[-1][1] == begin:
            begin = found.pop()[0]
        found.append((begin, end, step))
    if found == [(0, size, 1)] or size == 0:
        return ()
    return tuple(found) or _NOTHING


def part_shape(shape: Sequence[int], part: Part) -> tuple[int, ...]:
    """The shape of a part."""
    return tuple(length_of(part[i]) if i < len(part) and part[i] else size for i, size in enumerate(shape))


def check_bytes(info: Info, part: Part) -> None:
    """Refuses a part of a sub-byte type that does not begin and end at whole bytes."""
    name, dtype, shape, *_ = info
    bits = BITS[dtype]
    if bits >= 8:
        return
    for i, ranges in enumerate(part):
        inner = prod(shape[i + 1 :]) * bits
        edges = [edge for begin, end, _ in ranges for edge in (begin, end)]
        steps = [1 for _, _, step in ranges if step > 1]
        rows = [shape[i]] if ranges and prod(shape[:i]) > 1 else []
        last = shape[i] if not rows else -1  # the end of the tensor, which is padded
        if any(edge * inner % 8 and edge != last for edge in (*edges, *steps, *rows)):
            raise ArgumentError(
                f"{name}: dimension {i} of {shape}, of {bits}-bit {dtype}, can't be cut there: "
                "parts must begin and end at whole bytes"
            )


def slices_part(where: str, shape: tuple[int, ...], slices: Sequence[Any]) -> Part:
    """The part that slices pick, one for each dimension; of a dimension also None, or several ranges."""
    if Ellipsis in slices:
        if sum(each is Ellipsis for each in slices) > 1:
            raise ArgumentError(f"{where}: an index can only have one ellipsis")
        at = list(slices).index(Ellipsis)
        filling = [slice(None)] * (len(shape) - len(slices) + 1)
        slices = [*slices[:at], *filling, *slices[at + 1 :]]
    if len(slices) > len(shape):
        raise ArgumentError(f"{where}: {len(slices)} slices for a tensor of shape {shape}")
    dims = [_ranges(where, size, each) for size, each in zip(shape, slices, strict=False)]
    return normal_part(shape, dims)


def _ranges(where: str, size: int, wanted: Any) -> list[Range]:
    if wanted is None:
        return [(0, size, 1)]
    if isinstance(wanted, slice):
        return [_range_of(where, size, wanted)]
    if isinstance(wanted, (tuple, list)):
        return _checked_ranges(where, size, wanted)
    raise ArgumentError(f"{where}: expected a slice for each dimension, not {type(wanted).__name__} ({wanted!r})")


def _range_of(where: str, size: int, wanted: slice) -> Range:
    try:
        begin, end, step = wanted.indices(size)
    except (TypeError, ValueError) as problem:
        raise ArgumentError(f"{where}: {wanted!r}: {problem}") from problem
    if step < 0:
        raise ArgumentError(f"{where}: {wanted!r} has a negative step; read it forwards and flip what was loaded")
    return begin, end, step


def _checked_ranges(where: str, size: int, ranges: Sequence[Any]) -> list[Range]:
    """Ranges that a caller gives; none of them are the whole dimension."""
    found: list[Range] = []
    reached = 0
    for each in ranges:
        if not (isinstance(each, (tuple, list)) and len(each) == 3 and all(type(bound) is int for bound in each)):
            raise ArgumentError(f"{where}: a range is (begin, end, step), not {each!r}")
        begin, end, step = each
        if step < 1 or not reached <= begin <= end <= size:
            raise ArgumentError(
                f"{where}: ranges must ascend, not overlap, end within {size} and have a step of at least 1: {each!r}"
            )
        found.append((begin, end, step))
        reached = end
    return found or [(0, size, 1)]
