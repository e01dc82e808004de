"""dcp.json: what torch.distributed.checkpoint keeps in its pickle `.metadata`, as JSON. docs/dcp.md describes it."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from .._torch import DTYPES, NAMES
from ..errors import ArgumentError, FormatError, IoError, NotFoundError, PermissionDeniedError, UnsupportedError
from ._names import METADATA, is_plain_name

FORMAT = "penstock.dcp"
VERSION = 1
_LARGEST = 1 << 30  # of the text in bytes
_LONGEST = 300  # of what a message shows of it
_MOST_DIMENSIONS = 64  # torch's limit
_MOST_OF_ONE_HASH = 100

_T = TypeVar("_T")


class Location(NamedTuple):
    """Where a chunk of a tensor, or a pickle, is."""

    file: str
    name: str | None  # of the tensor in the file; None: it has only that one
    stretch: tuple[int, int] | None = None  # offset and length of a checkpoint within the file; None: it is the file
    raw: bool = False  # the stretch is a pickle, and no checkpoint
    shape: tuple[int, ...] | None = None  # that a chunk has, as the metadata says


# By name, and by where in its tensor a chunk begins; None for what is no tensor.
Key = tuple[str, "tuple[int, ...] | None"]
Locations = dict[Key, Location]


def key_of(index: MetadataIndex) -> Key:
    """By what a planner asks for it."""
    return index.fqn, None if index.offset is None else tuple(index.offset)


def encode(metadata: Metadata, locations: Mapping[Key, Location]) -> bytes:
    """The JSON text. Raises UnsupportedError for what a planner keeps in it and JSON has no form for."""
    files = sorted({location.file for location in locations.values()})
    numbers = {file: number for number, file in enumerate(files)}
    tensors: dict[str, Any] = {}
    objects: dict[str, int] = {}
    for name, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            chunks = [
                _encode_chunk(chunk, numbers[locations[name, tuple(chunk.offsets)].file]) for chunk in entry.chunks
            ]
            tensors[name] = {"dtype": NAMES[entry.properties.dtype], "shape": list(entry.size), "chunks": chunks}
            if entry.properties.requires_grad:
                tensors[name]["requires_grad"] = True
        else:
            objects[name] = numbers[locations[name, None].file]
    document = {"format": FORMAT, "version": VERSION, "files": files, "tensors": tensors, "objects": objects}
    text = json.dumps(document | _encode_planner_data(metadata.planner_data), separators=(",", ":")).encode()
    return text[:-1] + _own_checksum(text[:-1])


def _own_checksum(text: bytes) -> bytes:
    """The last entry, a CRC-32 of all that comes before it, and the end."""
    return b',"crc32":"%08x"}' % crc32(text)


def _check_own_checksum(text: bytes) -> None:
    """Who edits the text takes its last entry away."""
    length = len(_own_checksum(b""))
    covered, entry = text[:-length], text[-length:]
    if entry[:10] == _own_checksum(b"")[:10] and entry != _own_checksum(covered):
        found, said = (each[10:18].decode(errors="replace") for each in (_own_checksum(covered), entry))
        raise _ProblemError(f"is damaged, or was edited: its CRC-32 is {found}, it says {said!r}")


def _encode_chunk(chunk: ChunkStorageMetadata, file: int) -> dict[str, Any]:
    return {"file": file, "offsets": list(chunk.offsets), "shape": list(chunk.sizes)}


def _encode_planner_data(data: Any) -> dict[str, Any]:
    """What the default planner keeps: the path of each name in the state dict, of keys and numbers."""
    if data is None:
        return {}
    if isinstance(data, dict) and all(_is_path(path) for path in data.values()):
        return {"paths": {name: list(path) for name, path in data.items()}}
    raise UnsupportedError(
        f"a planner's data of {type(data).__name__} can't be kept: only the paths of names in the state dict can"
    )


def _is_path(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(each) in (str, int) for each in value)


def read(directory: Path) -> tuple[Metadata, Locations]:
    """The metadata of a directory, and where everything is. Raises FormatError that names what is wrong in the file."""
    path = directory / METADATA
    text = read_small_file(path, _LARGEST)
    try:
        _check_own_checksum(text)
        return _Decoder(json.loads(text)).run()
    except _ProblemError as problem:
        raise FormatError(f"{path}: {problem}") from problem
    except (ValueError, RecursionError) as problem:  # also for a number of thousands of digits
        raise FormatError(f"{path}: is no JSON: {first_line(problem)}") from problem


def read_small_file(path: Path, most: int) -> bytes:
    """All of a regular file: who waits for a FIFO, or reads a device, never comes back."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as problem:
        raise NotFoundError(f"{path}: does not exist") from problem
    except OSError as problem:
        kind = PermissionDeniedError if isinstance(problem, PermissionError) else IoError
        raise kind(f"{path}: cannot open: {problem.strerror}") from problem
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ArgumentError(f"{path}: not a regular file")
        with open(fd, "rb", closefd=False) as file:  # which leaves it open where it fails
            data = file.read(most + 1)
    finally:
        os.close(fd)
    if len(data) > most:
        raise FormatError(f"{path}: is larger than {most} bytes")
    return data


def first_line(problem: BaseException) -> str:
    """For messages, which are one line and not a whole file."""
    return str(problem).partition("\n")[0][:_LONGEST]


def shown(value: Any) -> str:
    """A value of a file, for messages."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def distinct(entries: Iterable[tuple[Any, _T]]) -> dict[Any, _T]:
    """A dict of them. Anybody can make numbers that have one hash: what Python does with n of them takes n^2 steps."""
    found: dict[Any, _T] = {}
    hashes: Counter[int] = Counter()
    for key, value in entries:
        hashes[hash(key)] += 1
        if hashes[hash(key)] > _MOST_OF_ONE_HASH:
            raise FormatError(f"more than {_MOST_OF_ONE_HASH} keys have the same hash")
        found[key] = value
    return found


class _ProblemError(Exception):
    """What is wrong in the document."""


class _Decoder:
    def __init__(self, document: Any) -> None:
        self._document = _checked(document, dict, "the document")
        if self._document.get("format") != FORMAT:
            raise _ProblemError(f'"format" is {shown(self._document.get("format"))}, and not {FORMAT!r}')
        if self._document.get("version") != VERSION:
            raise _ProblemError(f'"version" is {shown(self._document.get("version"))}; this penstock reads {VERSION}')
        self._files = _list_of(self._document.get("files"), str, '"files"')
        for name in self._files:
            if not is_plain_name(name):
                raise _ProblemError(f'"files": {shown(name)} is not a plain file name')
        self.locations: Locations = {}
        self._hashes: Counter[int] = Counter()

    def run(self) -> tuple[Metadata, Locations]:
        entries: dict[str, Any] = {}
        for name, entry in self._part("tensors").items():
            entries[name] = self._tensor(name, entry)
        for name, number in self._part("objects").items():
            if name in entries:
                raise _ProblemError(f"{shown(name)} is a tensor and an object")
            entries[name] = BytesStorageMetadata()
            self.locations[name, None] = Location(self._file(number, f"the object {shown(name)}"), name)
        return Metadata(entries, planner_data=self._paths(entries)), self.locations

    def _part(self, key: str) -> dict[str, Any]:
        return _checked(self._document.get(key), dict, f'"{key}"')

    def _tensor(self, name: str, entry: Any) -> TensorStorageMetadata:
        where = f"tensor {shown(name)}"
        _checked(entry, dict, where)
        said = entry.get("dtype")
        dtype = DTYPES.get(said) if isinstance(said, str) else None
        if dtype is None:
            raise _ProblemError(f"{where}: unknown dtype {shown(said)}")
        shape = _sizes(entry.get("shape"), f"{where}: its shape")
        chunks = []
        for each in _list_of(entry.get("chunks"), dict, f"{where}: its chunks"):
            chunk = self._chunk(where, shape, each)
            key = name, tuple(chunk.offsets)
            self._hashes[hash(key)] += 1
            if self._hashes[hash(key)] > _MOST_OF_ONE_HASH:
                raise _ProblemError(f"{where}: more than {_MOST_OF_ONE_HASH} chunks have the same hash")
            if key in self.locations:
                raise _ProblemError(f"{where}: two chunks at {list(chunk.offsets)}")
            self.locations[key] = Location(self._file(each.get("file"), where), name, shape=tuple(chunk.sizes))
            chunks.append(chunk)
        covered = sum(prod(chunk.sizes) for chunk in chunks)
        if covered > prod(shape):
            raise _ProblemError(f"{where}: its chunks have {covered} elements of {prod(shape)}")
        properties = TensorProperties(dtype=dtype, requires_grad=entry.get("requires_grad") is True)
        return TensorStorageMetadata(properties, torch.Size(shape), chunks)

    def _chunk(self, where: str, shape: list[int], entry: dict[str, Any]) -> ChunkStorageMetadata:
        offsets = _sizes(entry.get("offsets"), f"{where}: the offsets of a chunk")
        sizes = _sizes(entry.get("shape"), f"{where}: the shape of a chunk")
        if not len(offsets) == len(sizes) == len(shape):
            raise _ProblemError(
                f"{where} has {len(shape)} dimensions, and a chunk {len(offsets)} offsets, {len(sizes)} sizes"
            )
        if any(offset + size > whole for offset, size, whole in zip(offsets, sizes, shape, strict=True)):
            raise _ProblemError(f"{where}: the chunk {sizes} at {offsets} is not within {shape}")
        return ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))

    def _file(self, number: Any, where: str) -> str:
        if type(number) is not int or not 0 <= number < len(self._files):
            raise _ProblemError(f"{where}: {shown(number)} is none of {len(self._files)} files")
        return self._files[number]

    def _paths(self, entries: Iterable[str]) -> dict[str, tuple[Any, ...]] | None:
        if "paths" not in self._document:
            return None
        paths = {
            name: tuple(_checked(path, list, f"the path of {shown(name)}"))
            for name, path in self._part("paths").items()
        }
        for name, path in paths.items():
            if not path or not _is_path(path):
                raise _ProblemError(f"the path of {shown(name)} is not one of keys and numbers")
        missing = next((name for name in entries if name not in paths), None)
        if missing is not None:
            raise _ProblemError(f"{shown(missing)} has no path")
        return paths


def _checked(value: Any, kind: type[_T], what: str) -> _T:
    if not isinstance(value, kind):
        raise _ProblemError(f"{what} is {type(value).__name__}, and no {kind.__name__}")
    return value


def _list_of(value: Any, kind: type[_T], what: str) -> list[_T]:
    return [_checked(each, kind, f"an entry of {what}") for each in _checked(value, list, what)]


def _sizes(value: Any, what: str) -> list[int]:
    sizes = _list_of(value, int, what)
    if len(sizes) > _MOST_DIMENSIONS:
        raise _ProblemError(f"{what} has {len(sizes)} dimensions, more than {_MOST_DIMENSIONS}")
    if any(type(size) is bool or not 0 <= size < 1 << 63 for size in sizes):
        raise _ProblemError(f"{what} is {shown(sizes)}")
    return sizes
