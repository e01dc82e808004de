"""Which shard has which tensor, and where: the layout of a set, before anything is written."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapreplace
from typing import Any, Union

from .._options import checked_text
from .._paths import target_text
from ..errors import ArgumentError
from .st_types import DTYPE_SIZES, DType

# What every shard says of itself in its metadata: its number, from 0, how many there are, and which set it is of.
KEY_SHARD_INDEX = "fst.shard.index"
KEY_SHARD_COUNT = "fst.shard.count"
KEY_SHARD_SET = "fst.shard.set"
_RESERVED = frozenset((KEY_SHARD_INDEX, KEY_SHARD_COUNT, KEY_SHARD_SET))


@dataclass
class WriteEntry:
    """A tensor to write: name, type and shape in the file, bytes there, and what they are made of.

    The default fill takes a tensor as the `source`; only its number of bytes has to fit.
    """

    name: str
    dtype: DType
    shape: list[int]
    nbytes: int
    source: Any = None


@dataclass
class ShardPlan:
    """A file to write: its header, and where in it each tensor begins and ends."""

    path: str
    entries: list[WriteEntry]
    header: bytes
    offsets: dict[str, tuple[int, int]] = field(default_factory=dict)
    total_bytes: int = 0


ShardMetadataFn = Callable[[Sequence[WriteEntry]], Mapping[str, str]]
Metadata = Union[Mapping[str, str], None]


def check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ArgumentError(f"{name} must be positive, not {value}")


def shard_paths(base: str, num_shards: int) -> list[str]:
    """The paths of the shards where no older set is: "BASE-00001-of-00004.safetensors" and so on."""
    check_positive("num_shards", num_shards)
    return [f"{os.fspath(base)}-{number:05d}-of-{num_shards:05d}.safetensors" for number in range(1, num_shards + 1)]


def plan_shards(
    entries: Sequence[WriteEntry],
    paths: Sequence[str],
    *,
    metadata: Metadata = None,
    shard0_metadata: Metadata = None,
    shard_metadata: ShardMetadataFn | None = None,
    header_align: int = 8,
) -> list[ShardPlan]:
    """Spreads entries over files: the largest first, each into the file that has the least. Writes nothing.

    metadata: strings for every file.
    shard0_metadata: for the first file only.
    shard_metadata: called with the entries of each file; what it returns is for that file.
    header_align: pad each header, its eight bytes of length not counted, to a multiple of this.
    """
    _check_paths(paths)
    if header_align < 8 or header_align % 8 != 0:
        raise ArgumentError(f"header_align must be a positive multiple of 8, not {header_align}")
    _check_entries(entries)
    everywhere = _checked_metadata("metadata", metadata)
    only_first = _checked_metadata("shard0_metadata", shard0_metadata)
    set_id = uuid.uuid4().hex
    plans = []
    for number, (path, members) in enumerate(zip(paths, _spread(entries, len(paths)), strict=True)):
        texts = everywhere | (only_first if number == 0 else {})
        texts |= {KEY_SHARD_INDEX: str(number), KEY_SHARD_COUNT: str(len(paths)), KEY_SHARD_SET: set_id}
        if shard_metadata is not None:
            texts |= _own_metadata(shard_metadata, members)
        plans.append(_laid_out(path, members, texts, header_align))
    return plans


def _check_paths(paths: Sequence[str]) -> None:
    if not paths:
        raise ArgumentError("paths must name at least one file")
    seen = set()
    for path in paths:
        real = os.path.abspath(target_text(path))
        if real in seen:
            raise ArgumentError(f"{path}: is twice among the paths")
        seen.add(real)


def _check_entries(entries: Sequence[WriteEntry]) -> None:
    names = set()
    for entry in entries:
        if not isinstance(entry.name, str):
            raise ArgumentError(f"tensor names are strings, not {type(entry.name).__name__}")
        if entry.name == "__metadata__":
            raise ArgumentError("a tensor can't have the reserved name __metadata__")
        if checked_text("the name", entry.name) in names:
            raise ArgumentError(f"{entry.name}: two tensors have this name")
        names.add(entry.name)
        _check_size(entry)


def _check_size(entry: WriteEntry) -> None:
    name, dtype, shape = entry.name, entry.dtype, list(entry.shape)
    if dtype is DType.AUTO:
        raise ArgumentError(f"{name}: AUTO is not a type that a file can have")
    count = 1
    for size in shape:
        if size < 0:
            raise ArgumentError(f"{name}: the shape {shape} has a negative size")
        count *= size
    if dtype is DType.F4 and (not shape or shape[-1] % 2 != 0):
        raise ArgumentError(f"{name}: F4 of shape {shape}: the last dimension must be even")
    if count * DTYPE_SIZES[dtype] != entry.nbytes:
        raise ArgumentError(
            f"{name}: {dtype.value} of shape {shape} has {count * DTYPE_SIZES[dtype]:.15g} bytes, not {entry.nbytes}"
        )


def _checked_metadata(what: str, given: Metadata) -> dict[str, str]:
    texts = dict(given or {})
    for key, value in texts.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ArgumentError(f"{what}: {key!r}: both key and value must be strings")
        checked_text(what, key)
        checked_text(what, value)
    return texts


def _own_metadata(shard_metadata: ShardMetadataFn, members: list[WriteEntry]) -> dict[str, str]:
    texts = _checked_metadata("shard_metadata", shard_metadata(tuple(members)))
    taken = sorted(_RESERVED & set(texts))
    if taken:
        raise ArgumentError(f"shard_metadata: the key {taken[0]} is the saver's own")
    return texts


def _spread(entries: Sequence[WriteEntry], count: int) -> list[list[WriteEntry]]:
    members: list[list[WriteEntry]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]
    for entry in sorted(entries, key=lambda entry: -entry.nbytes):
        nbytes, number = loads[0]
        members[number].append(entry)
        heapreplace(loads, (nbytes + entry.nbytes, number))
    return members


def _laid_out(path: str, members: list[WriteEntry], texts: dict[str, str], header_align: int) -> ShardPlan:
    header: dict[str, Any] = {}
    end = 0
    for entry in members:
        offsets = [end, end + entry.nbytes]
        header[entry.name] = {"dtype": entry.dtype.value, "shape": list(entry.shape), "data_offsets": offsets}
        end += entry.nbytes
    text = json.dumps(header | {"__metadata__": texts}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % header_align)
    start = 8 + len(text)
    places = {name: (start + row["data_offsets"][0], start + row["data_offsets"][1]) for name, row in header.items()}
    return ShardPlan(path, members, len(text).to_bytes(8, "little") + text, places, start + end)
