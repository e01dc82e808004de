"""What a drive can do: the ceilings that loads and saves can be compared with."""

from __future__ import annotations

from . import _core
from ._options import IoTuning, Path, Stats, parse_size, path_text
from ._types import Unpack

__all__ = ["available_backends", "drop_page_cache", "measure_read", "measure_write"]


def measure_read(path: Path, max_bytes: int | str = "4GiB", **tuning: Unpack[IoTuning]) -> Stats:
    """Reads a file directly into recycled memory and throws the bytes away: bytes, seconds, method, backend."""
    return Stats(_core.measure_read(path_text(path), _core.IoOptions(**tuning), parse_size(max_bytes)))


def measure_write(
    directory: Path, nbytes: int | str = "1GiB", method: str = "auto", **tuning: Unpack[IoTuning]
) -> Stats:
    """Writes a temporary file durably, and removes it: bytes, seconds, method, backend."""
    return Stats(_core.measure_write(path_text(directory), _core.IoOptions(**tuning), method, parse_size(nbytes)))


def drop_page_cache(path: Path) -> None:
    """Drops a file's clean pages from the page cache (after syncing it), so that the next read is cold."""
    _core.drop_page_cache(path_text(path))


def available_backends() -> list[str]:
    """Names of the backends that work on this machine, best first."""
    return _core.available_backends().replace(",", " ").split()
