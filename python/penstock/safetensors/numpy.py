"""Stands in for safetensors.numpy. Beyond it, bfloat16 and float8 tensors come as ml_dtypes arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .._load import load as _load
from .._save import save as _save
from ._bytes import load_bytes, save_bytes
from ._reference import cache_for, checked_tensors, one_path
from ._safe_open import safe_open
from ._serialize import TensorSpec, deserialize, serialize, serialize_file

if TYPE_CHECKING:
    import os
    from typing import Any

    from numpy import ndarray

# The names of the package itself are here too, as they are there.
__all__ = [
    "TensorSpec",
    "deserialize",
    "load",
    "load_file",
    "safe_open",
    "save",
    "save_file",
    "serialize",
    "serialize_file",
]


def save_file(
    tensor_dict: Mapping[str, ndarray[Any, Any]],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
) -> None:
    """Saves arrays to a file."""
    tensors = checked_tensors(tensor_dict, metadata)
    _save(tensors, one_path(filename), format="safetensors", metadata=metadata, shared="duplicate", checksums=False)


def save(tensor_dict: Mapping[str, ndarray[Any, Any]], metadata: dict[str, str] | None = None) -> bytes:
    """What `save_file` would write."""
    return save_bytes(checked_tensors(tensor_dict, metadata), metadata, shared="duplicate")


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, ndarray[Any, Any]]:
    """Loads a file as arrays."""
    return _load(one_path(filename), framework="numpy", cache=cache_for(backend))


def load(data: bytes) -> dict[str, ndarray[Any, Any]]:
    """Loads what `save` gave."""
    return load_bytes(data, "numpy")
