"""What the writer needs to know of a tensor."""

from __future__ import annotations

from typing import Any, NamedTuple


class Source(NamedTuple):
    """Memory to be written. `owner` keeps it alive; `byte_strides` is None when it is contiguous."""

    dtype: str
    shape: tuple[int, ...]
    address: int
    byte_strides: tuple[int, ...] | None
    owner: Any
