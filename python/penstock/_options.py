"""Options: what callers write, turned into what the engine takes."""

from __future__ import annotations

import operator
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
_DEFAULT_ALIGN_BYTES = 128
_MAX_ALIGN_BYTES = 2**30
_MAX_SIZE = 2**63 - 1
_MAX_COUNT = 2**31 - 1

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
    dtype: Any
    align_bytes: int | None
    order: str
    align_large: bool
    record_alignment: int
    record_checksums: bool


class FormatArguments(IoTuning, total=False):
    """IoTuning, and what formats leave open.

    FlashPack: align_bytes, alignment of every tensor (128); order, "format" (those with the most elements first) or "given";
    align_large, tensors of at least 256 KiB start on a multiple of 4096 bytes. Torch zips: record_alignment (0: 4096 for large
    tensors, else 64, which is torch's own); record_checksums, the true CRC-32 of every record.
    """

    align_bytes: int | None
    order: str
    align_large: bool
    record_alignment: int
    record_checksums: bool


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
    nbytes = _parse_text_size(size) if isinstance(size, str) else _as_count(size, _MAX_SIZE)
    if nbytes is None or nbytes > _MAX_SIZE:
        raise ArgumentError(f'{size!r} is not a size such as 5000000, "5GB" or "4MiB"')
    return nbytes


def _parse_text_size(size: str) -> int | None:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", size.upper())
    if match is None or match[2] == "I":
        return None
    return int(float(match[1]) * _UNITS[match[2]])


def _as_count(value: Any, limit: int) -> int | None:
    """A whole number from 0 to `limit`; None for anything else."""
    try:
        count = operator.index(value)
    except TypeError:
        return None
    return count if 0 <= count <= limit else None


def _count(name: str, value: Any) -> int:
    count = _as_count(value, _MAX_COUNT)
    if count is None:
        raise ArgumentError(f"{name} must be a whole number that is not negative, not {value!r}")
    return count


def _alignment(value: Any) -> int:
    count = _as_count(value, _MAX_ALIGN_BYTES)
    if count is None:
        raise ArgumentError(f"align_bytes must be a whole number from 0 to {_MAX_ALIGN_BYTES}, not {value!r}")
    return count


def _word(name: str, value: Any) -> str:
    """The engine knows the words."""
    if not isinstance(value, str):
        raise ArgumentError(f'{name} must be a word such as "auto", not {value!r}')
    return checked_text(name, value)


def is_text(value: str) -> bool:
    """Whether it can be written as UTF-8: half of a surrogate pair can't."""
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_text(what: str, value: str) -> str:
    """The value; refused when it can't be written as UTF-8."""
    if not is_text(value):
        raise ArgumentError(f"{what} {value!r} can't be written as UTF-8")
    return value


def path_text(path: Path) -> str:
    """A path as the engine takes it."""
    text = os.fsdecode(path)
    try:
        valid = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        valid = False
    if not valid:
        raise ArgumentError(f"{text!r} can't be the name of a file")
    return text


def open_reader(paths: Paths) -> _core.Reader:
    """A file, a directory of shards, an index.json, or several files."""
    return _core.Reader(path_texts(paths))


def path_texts(paths: Paths) -> list[str]:
    """One path or several, as a list."""
    if isinstance(paths, Iterable) and not isinstance(paths, (str, bytes, os.PathLike)):
        return [path_text(path) for path in paths]
    return [path_text(paths)]


def io_options(
    *, backend: str = "auto", block_size: int | str = 0, queue_depth: int = 0, threads: int = 0, **unknown: Any
) -> _core.IoOptions:
    """IoTuning for the engine. It is where keywords that nobody knows end up."""
    if unknown:
        raise TypeError(f"got an unexpected keyword argument {next(iter(unknown))!r}")
    return _core.IoOptions(
        backend=_word("backend", backend),
        block_size=parse_size(block_size),
        queue_depth=_count("queue_depth", queue_depth),
        threads=_count("threads", threads),
    )


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
        verify=bool(verify),
        cache=_word("cache", cache),
        landing=_word("landing", landing),
        pool=checked_pool(pool),
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
    dtype: Any = None,
    align_bytes: int | None = None,
    order: str = "format",
    align_large: bool = False,
    record_alignment: int = 0,
    record_checksums: bool = True,
    pickle: bytes | None = None,
    around_pickle: tuple[bytes, bytes] | None = None,
    **tuning: Unpack[IoTuning],
) -> _core.SaveOptions:
    """What a save takes."""
    if order not in ("format", "given"):
        raise ArgumentError(f'order must be "format" or "given", not {order!r}')
    given: dict[str, Any] = {} if around_pickle is None else {"around_pickle": around_pickle}
    if metadata is not None and not metadata:
        given["empty_metadata"] = True  # as the reference writes it
    return _core.SaveOptions(
        format="" if format is None else _word("format", format),
        metadata=_check_metadata(metadata or {}),
        max_shard_size=0 if max_shard_size is None else parse_size(max_shard_size),
        checksums=bool(checksums),
        shared=_word("shared", shared),
        durable=bool(durable),
        method=_word("method", method),
        dtype=None if dtype is None else dtype_name(dtype),
        align_bytes=_DEFAULT_ALIGN_BYTES if align_bytes is None else _alignment(align_bytes),
        keep_order=order == "given",
        align_large=bool(align_large),
        record_alignment=_count("record_alignment", record_alignment),
        record_checksums=bool(record_checksums),
        pickle=pickle,
        io=io_options(**tuning),
        **given,
    )


def _check_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ArgumentError(f"metadata: {key!r}: both key and value must be strings")
        checked_text("the metadata key", key)
        checked_text(f"metadata: {key!r}: the value", value)
    return dict(metadata)


def checked_pool(pool: Any) -> MemoryPool | None:
    """The pool, if it is one."""
    if pool is not None and not isinstance(pool, _core.MemoryPool):
        raise ArgumentError(f"pool must be a MemoryPool, not {pool!r}")
    return pool
