"""Tensors whose element type no framework has."""

from __future__ import annotations

from typing import Any, NamedTuple


class PackedTensor(NamedTuple):
    """A tensor of a sub-byte type that the framework has no dtype for, as its packed bytes.

    Loads give it for F6_E2M3 and F6_E3M2, and under NumPy (or for an odd last dimension) for F4 too. `data` is a
    one-dimensional uint8 tensor or array, bit for bit what the file holds; ``penstock.save`` writes it back as it was.
    """

    dtype: str
    shape: tuple[int, ...]
    data: Any

    @property
    def nbytes(self) -> int:
        """Bytes of `data`."""
        return int(self.data.nbytes)
