"""What the writers count, under the names that FastPersist gives it.

Counts: close, fileno, flush and write are calls; bytes and write_secs are those of all writes, write_GB/s their rate.
save_storage and save_storage_bytes are the storages given in lists. Of the fast writer: aio_bytes went out in the
background, while there was at least one write under way for aio_write_secs; slow_bytes, of a small file, at the end;
fill_buffer_* are the copies into the staging memory. A GB has 2**30 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GIB = 2**30

BASE_KEYS = ("close", "fileno", "flush", "write", "bytes", "write_secs", "write_GB/s")
STORAGE_KEYS = ("save_storage", "save_storage_bytes")
FAST_KEYS = (
    "aio_write_secs",
    "aio_bytes",
    "aio_GB/s",
    "slow_bytes",
    "slow_write_secs",
    "fill_buffer_count",
    "fill_buffer_secs",
    "fill_buffer_GB/s",
)


def rate(nbytes: int, seconds: float) -> float:
    """GB per second; 0 for what took no time."""
    return nbytes / seconds / GIB if seconds > 0 else 0.0


def fast_stats(engine: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's own counts under FAST_KEYS."""
    written = engine["bytes_written"]
    return {
        "aio_write_secs": engine["write_seconds"],
        "aio_bytes": written,
        "aio_GB/s": rate(written, engine["write_seconds"]),
        "slow_bytes": engine["bytes_slow"],
        "slow_write_secs": engine["slow_seconds"],
        "fill_buffer_count": engine["fills"],
        "fill_buffer_secs": engine["fill_seconds"],
        "fill_buffer_GB/s": rate(engine["bytes"], engine["fill_seconds"]),
    }
