"""What the safetensors package has where penstock has something else: backends, and the classes of its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ArgumentError, Error, LayoutError, ModelError, SharedMemoryError, UnsupportedError

_CACHE = {"mmap": "auto", "pread": "buffered"}


def cache_for(backend: str) -> str:
    """penstock's cache policy for a backend of safetensors."""
    cache = _CACHE.get(backend)
    if cache is None:
        raise ArgumentError(f'backend must be "mmap" or "pread", not {backend!r}')
    return cache


@contextmanager
def as_reference() -> Iterator[None]:
    """For saves: raises errors that are also what the safetensors package raises in their place."""
    try:
        yield
    except UnsupportedError as error:
        raise LayoutError(str(error)) from error
    except SharedMemoryError as error:
        raise ModelError(f"{error}; save_model stores what is shared once") from error


@contextmanager
def called(path: str, name: str) -> Iterator[None]:
    """Errors that name a path which the caller has never seen name this instead."""
    try:
        yield
    except Error as error:
        error.args = (str(error).replace(path, name),)
        raise
