"""Basic indexing, as NumPy understands it: which part of a tensor must be read, and what is picked of it then."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from .errors import TensorIndexError


class Basic(NamedTuple):
    """A basic index, taken apart.

    `ranges` has a half-open range per dimension: the bytes to read. `steps` says how each dimension of what was read is
    walked (0: its only element is taken, and the dimension goes away). `new_axes` are positions in the result.
    """

    ranges: list[tuple[int, int]]
    steps: list[int]
    new_axes: list[int]

    @property
    def is_plain(self) -> bool:
        """Whether the ranges say it all."""
        return not self.new_axes and all(step == 1 for step in self.steps)

    def picks(self, *, absolute: bool = False) -> tuple[Any, ...]:
        """The index to apply to what was read; with `absolute`, for dimensions that are already turned round."""
        steps = [abs(step) for step in self.steps] if absolute else self.steps
        result: list[Any] = [slice(None, None, step) if step else 0 for step in steps]
        for axis in self.new_axes:
            result.insert(axis, None)
        return tuple(result)


def parse_index(index: Any, shape: tuple[int, ...]) -> Basic:
    """Takes an index apart. Raises TensorIndexError, which is an IndexError, when it does not fit the shape."""
    items = _expand_ellipsis(index if isinstance(index, tuple) else (index,), len(shape))
    basic = Basic([], [], [])
    for position, item in enumerate(items):
        if item is None:
            basic.new_axes.append(position)
            continue
        begin, end, step = _parse_item(item, len(basic.ranges), shape[len(basic.ranges)])
        basic.ranges.append((begin, end))
        basic.steps.append(step)
    return basic


def _expand_ellipsis(items: tuple[Any, ...], dimensions: int) -> list[Any]:
    """One item per dimension, and the new axes."""
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > dimensions:
        raise TensorIndexError(f"too many indices: the tensor has {dimensions} dimensions, and {used} were indexed")
    ellipses = [position for position, item in enumerate(items) if item is Ellipsis]
    if len(ellipses) > 1:
        raise TensorIndexError("an index can have only one ellipsis")
    at = ellipses[0] if ellipses else len(items)
    whole = [slice(None)] * (dimensions - used)
    return [*items[:at], *whole, *items[at + 1 :]]


def _parse_item(item: Any, axis: int, size: int) -> tuple[int, int, int]:
    if isinstance(item, slice):
        return _parse_slice(item, size)
    position = _as_integer(item)
    if position is None:
        raise TensorIndexError(
            "only integers, slices, None and an ellipsis can index a tensor that is not loaded, "
            f"not {type(item).__name__}"
        )
    if not -size <= position < size:
        raise TensorIndexError(f"index {position} is out of bounds for axis {axis} with size {size}")
    position %= size
    return position, position + 1, 0


def _as_integer(item: Any) -> int | None:
    """Booleans are masks and arrays are lists of positions, even where Python would take them for a number."""
    if isinstance(item, bool) or len(getattr(item, "shape", ())) > 0:
        return None
    try:
        return operator.index(item)
    except TypeError:
        return None


def _parse_slice(item: slice, size: int) -> tuple[int, int, int]:
    walk = range(*item.indices(size))
    if not walk:
        return 0, 0, 1
    begin, last = min(walk[0], walk[-1]), max(walk[0], walk[-1])
    return begin, last + 1, walk.step if len(walk) > 1 else 1
