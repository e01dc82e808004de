"""Stands in for safetensors.paddle. Importing it without paddle is a LibraryError, which is an ImportError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._load import is_cpu
from ._libraries import Paddle
from ._safe_open import safe_open
from ._serialize import TensorSpec, deserialize, serialize, serialize_file

if TYPE_CHECKING:
    import os

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

_LIBRARY = Paddle()


def save_file(
    tensors: Mapping[str, Any], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Saves tensors of paddle to a file."""
    _LIBRARY.save_file(tensors, filename, metadata)


def save(tensors: Mapping[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    """What `save_file` would write."""
    return _LIBRARY.save(tensors, metadata)


def load_file(filename: str | os.PathLike[str], device: Any = "cpu", *, backend: str = "mmap") -> dict[str, Any]:
    """Loads a file as tensors of paddle."""
    return _placed(_LIBRARY.load_file(filename, backend), device)


def load(data: bytes, device: str = "cpu") -> dict[str, Any]:
    """Loads what `save` gave."""
    return _placed(_LIBRARY.load(data), device)


def _placed(tensors: dict[str, Any], device: Any) -> dict[str, Any]:
    return tensors if is_cpu(device) else {name: tensor.to(device) for name, tensor in tensors.items()}
