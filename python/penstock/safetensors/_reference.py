"""What the safetensors package has where penstock has something else: backends, and the classes of its errors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..errors import (
    ArgumentError,
    ArgumentTypeError,
    Error,
    LayoutError,
    ModelError,
    SharedMemoryError,
    UnsupportedError,
)

_CACHE = {"mmap": "auto", "pread": "buffered"}


def cache_for(backend: str) -> str:
    """penstock's cache policy for a backend of safetensors."""
    if not isinstance(backend, str):
        raise ArgumentTypeError(f'backend must be "mmap" or "pread", not {backend!r}')
    cache = _CACHE.get(backend)
    if cache is None:
        raise ArgumentError(f'backend must be "mmap" or "pread", not {backend!r}')
    return cache


def one_path(filename: Any) -> str | os.PathLike[str]:
    """The path of one file: penstock's own functions take several too, and would take an open file for that."""
    if not isinstance(filename, (str, bytes, os.PathLike)):
        raise ArgumentTypeError(f"expected str, bytes or os.PathLike object, not {type(filename).__name__}")
    return os.fsdecode(filename)


def checked_tensors(tensors: Any, metadata: Any) -> Mapping[str, Any]:
    """What is to be saved, by name; refused where the types are wrong."""
    if not isinstance(tensors, Mapping):
        if not hasattr(tensors, "state_dict"):
            raise ArgumentError(f"expected a dict of names to tensors, not {type(tensors).__name__}")
        tensors = dict(tensors.state_dict())
    for name in tensors:
        if not isinstance(name, str):
            raise ArgumentTypeError(f"tensor names are strings, not {type(name).__name__}")
    if metadata is not None:
        _check_metadata(metadata)
    checked: Mapping[str, Any] = tensors
    return checked


def _check_metadata(metadata: Any) -> None:
    if not isinstance(metadata, Mapping):
        raise ArgumentTypeError(f"metadata must be a dict of strings to strings, not {type(metadata).__name__}")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ArgumentTypeError(f"metadata: {key!r}: both key and value must be strings")


@contextmanager
def as_reference() -> Iterator[None]:
    """For saves: raises errors that are also what the safetensors package raises in their place."""
    try:
        yield
    except UnsupportedError as error:
        raise LayoutError(str(error)) from error
    except SharedMemoryError as error:
        found = str(error).partition("; shared=")[0]  # an argument that these functions do not have
        raise ModelError(f"{found}; save_model stores what is shared once") from error


@contextmanager
def called(path: str, name: str) -> Iterator[None]:
    """Errors that name a path which the caller has never seen name this instead."""
    try:
        yield
    except Error as error:
        error.args = (str(error).replace(path, name),)
        raise
