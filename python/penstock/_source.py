"""What the writer needs to know of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Source(NamedTuple):
    """Memory to be written. `owner` keeps it alive; `byte_strides` is None when it is contiguous.

    What is not in memory that the engine can read has `read` in its place: called as read(offset, nbytes, address), from any
    thread, it puts these bytes of the tensor, whole elements, at an address.
    """

    dtype: str
    shape: tuple[int, ...]
    address: int
    byte_strides: tuple[int, ...] | None
    owner: Any
    read: Callable[[int, int, int], None] | None = None
