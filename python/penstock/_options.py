"""Options: what callers write, turned into what the engine takes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, Union

from . import _core
from ._dtypes import dtype_name
from .errors import ArgumentError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._core import MemoryPool

Path = Union[str, "os.PathLike[str]"]
Paths = Union[Path, Iterable[Path]]

DEFAULT_BUFFER = 256 * 2**20

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


class IoTuning(TypedDict, total=False):
    """How bytes are moved. What is left out is chosen by file, destination and machine.

    backend: "uring" or "threads"; block_size: bytes per request (a number or "4MiB"); queue_depth: requests in flight;
    threads: threads that copy.
    """

    backend: str
    block_size: int | str
    queue_depth: int
    threads: int


class LoadTuning(IoTuning, total=False):
    """IoTuning, and: landing ("in_place" or "staged"), pool (a MemoryPool)."""

    landing: str
    pool: MemoryPool | None


class SaveArguments(IoTuning, total=False):
    """The arguments of a save that say what is written, how safely and how."""

    format: str | None
    metadata: Mapping[str, str] | None
    max_shard_size: int | str | None
    checksums: bool
    shared: str
    durable: bool
    method: str


class Stats(dict[str, Any]):
    """What a load or save did: path, landing, backend, bytes, seconds, requests, tensors_moved, reason ...

    A dict whose entries are attributes too.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def parse_size(size: int | str) -> int:
    """Bytes: 5000, "5GB" (decimal) or "4MiB" (binary)."""
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", size.upper())
    if match is None or match[2] == "I":
        raise ArgumentError(f'{size!r} is not a size such as 5000000, "5GB" or "4MiB"')
    return int(float(match[1]) * _UNITS[match[2]])


def open_reader(paths: Paths) -> _core.Reader:
    """A file, a directory of shards, an index.json, or several files."""
    if isinstance(paths, (str, os.PathLike)):
        return _core.Reader(os.fspath(paths))
    return _core.Reader([os.fspath(path) for path in paths])


def io_options(
    *, backend: str = "auto", block_size: int | str = 0, queue_depth: int = 0, threads: int = 0
) -> _core.IoOptions:
    """IoTuning for the engine."""
    return _core.IoOptions(backend=backend, block_size=parse_size(block_size), queue_depth=queue_depth, threads=threads)


def load_options(
    *,
    dtype: Any = None,
    verify: bool = False,
    cache: str = "auto",
    max_buffer: int | str = DEFAULT_BUFFER,
    landing: str = "auto",
    pool: MemoryPool | None = None,
    **tuning: Unpack[IoTuning],
) -> _core.LoadOptions:
    """What a load takes."""
    return _core.LoadOptions(
        dtype=None if dtype is None else dtype_name(dtype),
        verify=verify,
        cache=cache,
        landing=landing,
        pool=pool,
        io=io_options(**tuning),
        max_buffer=parse_size(max_buffer),
    )


def save_options(
    *,
    format: str | None = None,
    metadata: Mapping[str, str] | None = None,
    max_shard_size: int | str | None = None,
    checksums: bool = False,
    shared: str = "refuse",
    durable: bool = True,
    method: str = "auto",
    **tuning: Unpack[IoTuning],
) -> _core.SaveOptions:
    """What a save takes."""
    return _core.SaveOptions(
        format=format or "",
        metadata=_check_metadata(metadata or {}),
        max_shard_size=parse_size(max_shard_size or 0),
        checksums=checksums,
        shared=shared,
        durable=durable,
        method=method,
        io=io_options(**tuning),
    )


def _check_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ArgumentError(f"metadata: {key!r}: both key and value must be strings")
    return dict(metadata)
