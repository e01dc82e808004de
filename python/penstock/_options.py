"""Options: what callers write, turned into what the engine takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from . import _core
from ._core import MemoryPool
from ._dtypes import dtype_name
from ._paths import Path as Path
from ._paths import Paths as Paths
from ._paths import explaining, path_texts
from ._paths import path_text as path_text
from ._paths import target_text as target_text
from ._types import DType
from .errors import ArgumentError

# Formats whose files hold any object, and not only tensors by name.
TORCH_FORMATS = ("torch", "torch-legacy")

# What a caller may insist that files are verified against.
VERIFY_WORDS = ("if-any", "seal", "stored", "sha256")


class IoTuning(TypedDict, total=False):
    """How bytes are moved. What is left out is chosen by file, destination and machine.

    backend: "uring" or "threads"; block_size: bytes per request (a number, "4MiB" or "4M", see
    `parse_size`); queue_depth: requests in flight; threads: threads that copy; memory_budget: bytes of host memory that
    all of it may take, tensors that a load makes included, by default what is left of the machine's and the cgroup's
    (see docs/tuning.md); gds: "on" or "off", whether bytes may move between drive and device without the host
    (GPUDirect Storage), by default where the system has all that it takes.
    """

    backend: str
    block_size: int | str
    queue_depth: int
    threads: int
    memory_budget: int | str
    gds: str


class LoadTuning(IoTuning, total=False):
    """IoTuning, and: landing ("in_place" or "staged"), pool (a MemoryPool)."""

    landing: str
    pool: MemoryPool | None


class FormatArguments(IoTuning, total=False):
    """IoTuning, landing ("in_place": straight from the tensors' memory, or "staged"), and what formats leave open.

    FlashPack: align_bytes, alignment of every tensor (128); order, "format" (those with the most elements first) or
    "given"; align_large, tensors of at least 256 KiB start on a multiple of 4096 bytes. Torch zips: record_alignment
    (0: 4096 for large tensors, else 64, which is torch's own); record_checksums, the true CRC-32 of every record.
    """

    landing: str
    align_bytes: int | None
    order: str
    align_large: bool
    record_alignment: int
    record_checksums: bool


class SaveArguments(FormatArguments, total=False):
    """The arguments of a save that say what is written, how safely and how."""

    format: str | None
    metadata: Mapping[str, str] | None
    max_shard_size: int | str | None
    checksums: bool | None
    shared: str
    durable: bool
    method: str
    dtype: DType


class Stats(dict[str, Any]):
    """What a load or save did: path, landing, backend, bytes, seconds, requests, tensors_moved, reason ...

    A dict whose entries are attributes too. It prints as three lines: what was moved and how fast, on which way, and
    why.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __repr__(self) -> str:
        if not {"bytes", "seconds", "tensors", "path", "reason"} <= self.keys():
            return f"Stats({dict.__repr__(self)})"  # of something else, or of nothing yet
        return "\n".join([self._amount(), self._way(), self.reason])

    def _amount(self) -> str:
        gib = self.bytes / 2**30
        amount = f"{gib:.2f} GiB" if gib >= 1 else f"{self.bytes / 2**20:.1f} MiB"
        tensors = f"{self.tensors:,} tensor{'' if self.tensors == 1 else 's'}"
        speed = f" in {self.seconds:.3f} s, {gib / self.seconds:.2f} GiB/s" if self.seconds > 0 else ""
        return f"{tensors}, {amount}{speed}"

    def _way(self) -> str:
        words = dict.fromkeys(self[name] for name in ("path", "landing", "backend") if self.get(name))
        counts = [f"{self.requests:,} request{'' if self.requests == 1 else 's'}"] if self.get("requests") else []
        return ", ".join([*words, *counts])


# Bytes: 5000, "5GB" (KB, MB, GB, TB are powers of 1000), "4MiB" or "4M" (K, M, G, T alone are powers of 1024), "1.5G".
parse_size = _core.parse_size


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


def open_reader(paths: Paths) -> _core.Reader:
    """A file, a directory of shards, an index.json, or several files."""
    texts = path_texts(paths)
    with explaining(texts):
        return _core.Reader(texts)


def load_options(*, dtype: Any = None, **arguments: Any) -> _core.LoadOptions:
    """What a load takes: LoadTuning, dtype, verify, cache, max_buffer. The engine checks it and knows the defaults."""
    if "verify" in arguments:
        arguments["verify"] = verify_word(arguments["verify"])
    return _core.LoadOptions(dtype=_dtype_name(dtype), **arguments)


def verify_word(verify: bool | str) -> str:
    """The engine's word for a `verify` argument: False, True, or what to insist on."""
    if isinstance(verify, str):
        if verify not in VERIFY_WORDS:
            words = ", ".join(f'"{word}"' for word in VERIFY_WORDS)
            raise ArgumentError(f"verify must be True, False or one of {words}, not {verify!r}")
        return verify
    return "any" if verify else "off"


def save_options(
    *, dtype: Any = None, metadata: Mapping[str, str] | None = None, order: str = "format", **arguments: Any
) -> _core.SaveOptions:
    """What a save takes: SaveArguments, and for torch files pickle and around_pickle.

    The engine checks it and knows the defaults.
    """
    if order not in ("format", "given"):
        raise ArgumentError(f'order must be "format" or "given", not {order!r}')
    return _core.SaveOptions(
        dtype=_dtype_name(dtype),
        metadata=_check_metadata(metadata or {}),
        empty_metadata=metadata is not None and not metadata,  # as the reference writes it
        keep_order=order == "given",
        **arguments,
    )


def _dtype_name(dtype: Any) -> str | None:
    return None if dtype is None else dtype_name(dtype)


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
