"""Stands in for safetensors.numpy. Beyond it, bfloat16 and float8 tensors come as ml_dtypes arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .._load import load as _load
from .._save import save as _save
from ._bytes import load_bytes, save_bytes
from ._reference import cache_for

if TYPE_CHECKING:
    import os
    from typing import Any

    from numpy import ndarray

__all__ = ["load", "load_file", "save", "save_file"]


def save_file(
    tensor_dict: Mapping[str, ndarray[Any, Any]],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
) -> None:
    """Saves arrays to a file."""
    _save(tensor_dict, filename, format="safetensors", metadata=metadata, shared="duplicate")


def save(tensor_dict: Mapping[str, ndarray[Any, Any]], metadata: dict[str, str] | None = None) -> bytes:
    """What `save_file` would write."""
    return save_bytes(tensor_dict, metadata, shared="duplicate")


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, ndarray[Any, Any]]:
    """Loads a file as arrays."""
    return _load(filename, framework="numpy", cache=cache_for(backend))


def load(data: bytes) -> dict[str, ndarray[Any, Any]]:
    """Loads what `save` gave."""
    return load_bytes(data, "numpy")
