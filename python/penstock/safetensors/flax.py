"""Stands in for safetensors.flax. Importing it without jax is a LibraryError, which is an ImportError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._libraries import Jax
from ._safe_open import safe_open

if TYPE_CHECKING:
    import os

__all__ = ["load", "load_file", "safe_open", "save", "save_file"]

_LIBRARY = Jax()


def save_file(
    tensors: Mapping[str, Any], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Saves Jax arrays to a file."""
    _LIBRARY.save_file(tensors, filename, metadata)


def save(tensors: Mapping[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    """What `save_file` would write."""
    return _LIBRARY.save(tensors, metadata)


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, Any]:
    """Loads a file as Jax arrays."""
    return _LIBRARY.load_file(filename, backend)


def load(data: bytes) -> dict[str, Any]:
    """Loads what `save` gave."""
    return _LIBRARY.load(data)
