"""Arguments that every function of these modules takes."""

from __future__ import annotations

from ..errors import ArgumentError

_CACHE = {"mmap": "auto", "pread": "buffered"}


def cache_for(backend: str) -> str:
    """penstock's cache policy for a backend of safetensors."""
    cache = _CACHE.get(backend)
    if cache is None:
        raise ArgumentError(f'backend must be "mmap" or "pread", not {backend!r}')
    return cache
