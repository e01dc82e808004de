"""Directories of torch's own writers: FileSystemWriter's, whose metadata is a pickle, and safetensors files."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor import metadata as sharded
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from .. import _core
from .._opaque import Opaque
from .._torch import DTYPES
from ..errors import FormatError, UnsupportedError, UnsupportedFormatError
from ._metadata import Key, Location, Locations, distinct, first_line, key_of, read_small_file, shown
from ._names import TORCH_METADATA, is_plain_name
from ._pickles import read_bare_pickle

_OF_TORCH = "torch.distributed.checkpoint.metadata."
_OF_FILESYSTEM = "torch.distributed.checkpoint.filesystem."
_OF_SHARDS = "torch.distributed._shard.sharded_tensor.metadata."
# What a metadata of torch's is made of: records of plain data. Nothing else is made, whatever the pickle names.
_RECORDS: dict[str, Any] = {
    **{
        _OF_TORCH + kind.__name__: kind
        for kind in (BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex)
    },
    **{_OF_TORCH + kind.__name__: kind for kind in (StorageMeta, TensorProperties, TensorStorageMetadata)},
    **{_OF_FILESYSTEM + name: getattr(filesystem, name) for name in ("_StorageInfo", "_StoragePrefix")},
    _OF_SHARDS + "TensorProperties": sharded.TensorProperties,
}
_MEMORY_FORMATS: dict[str, Any] = {
    _OF_TORCH + "_MEM_FORMAT_ENCODING": _MEM_FORMAT_ENCODING,
    _OF_SHARDS + "MEM_FORMAT_ENCODING": sharded.MEM_FORMAT_ENCODING,
}
_PATHS = frozenset({"pathlib.Path", "pathlib.PosixPath", "pathlib.PurePosixPath"})
_LARGEST = 1 << 30


class _Maker:
    """Makes the records of torch's metadata of what the engine read of a pickle."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}  # by the value's id: a pickle names one value many times

    def make(self, value: Any) -> Any:
        if not isinstance(value, (Opaque, dict, list, tuple)):
            return value
        known = self._made.get(id(value), self)
        if known is None:
            raise FormatError("a value contains itself")
        if known is self:
            self._made[id(value)] = None
            known = self._made[id(value)] = self._make(value)
        return known

    def _make(self, value: Any) -> Any:
        if isinstance(value, Opaque):
            return self._make_opaque(value)
        if isinstance(value, dict):
            return distinct((self.make(key), self.make(each)) for key, each in value.items())
        if isinstance(value, torch.Size):
            return value
        return type(value)(self.make(each) for each in value)

    def _make_opaque(self, value: Opaque) -> Any:
        arguments = value.arguments or ()
        if value.name in _MEMORY_FORMATS and [type(each) for each in arguments] == [int] and value.state is None:
            return _MEMORY_FORMATS[value.name](*arguments)
        if value.name in _PATHS and all(type(each) is str for each in arguments) and value.state is None:
            return PurePosixPath(*arguments)
        kind = _RECORDS.get(value.name)
        if kind is None or arguments or value.items or value.entries:
            raise UnsupportedFormatError(f"{value.name} is not of torch's metadata, and is not imported")
        record = kind.__new__(kind)
        state = self.make(value.state)
        if isinstance(state, tuple) and hasattr(kind, "__setstate__"):
            record.__setstate__(state)
        elif isinstance(state, dict):
            for each in fields(kind):
                if each.name in state:
                    object.__setattr__(record, each.name, state[each.name])
        elif state is not None:
            raise FormatError(f"{value.name} with a state of {type(state).__name__}")
        return record


def read_torch(directory: Path) -> tuple[Metadata, Locations]:
    """What torch's FileSystemWriter wrote: a pickle, read as data, of which torch's records are made."""
    path = directory / TORCH_METADATA
    try:
        metadata = _Maker().make(read_bare_pickle(read_small_file(path, _LARGEST)))
    except UnsupportedFormatError as problem:
        raise UnsupportedFormatError(f"{path}: {problem}") from problem
    except (FormatError, AttributeError, RecursionError, TypeError, ValueError) as problem:
        reason = "" if isinstance(problem, FormatError) else f"is no metadata of torch's: {type(problem).__name__}: "
        raise FormatError(f"{path}: {reason}{first_line(problem)}") from problem
    try:
        if not isinstance(metadata, Metadata):
            raise FormatError("is no metadata of torch's")
        locations = distinct((key_of(index), _location(index, info)) for index, info in metadata.storage_data.items())
        return metadata, _complete(metadata, locations)
    except (AttributeError, TypeError, ValueError) as problem:
        if isinstance(problem, (FormatError, UnsupportedError)):
            raise type(problem)(f"{path}: {problem}") from problem
        raise FormatError(f"{path}: is no metadata of torch's: {first_line(problem)}") from problem


def _location(index: Any, info: Any) -> Location:
    if getattr(info, "transform_descriptors", None):
        raise UnsupportedFormatError(f"{index.fqn!r} was written by an extension: {info.transform_descriptors[0]!r}")
    if not (isinstance(info.relative_path, str) and is_plain_name(info.relative_path)):
        raise FormatError(f"{index.fqn!r} is in {shown(info.relative_path)}, which is not a plain file name")
    if not (type(info.offset) is type(info.length) is int and info.offset >= 0 and info.length >= 0):
        raise FormatError(f"{index.fqn!r} lies at {info.offset!r}, {info.length!r} bytes")
    return Location(info.relative_path, None, (info.offset, info.length))


def _complete(metadata: Metadata, locations: Locations) -> Locations:
    """Those of all that the metadata names, with what it says of chunks."""
    found: Locations = {}
    for name, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            for chunk in entry.chunks:
                key = name, tuple(chunk.offsets)
                found[key] = _located(locations, key)._replace(shape=tuple(chunk.sizes))
        else:
            found[name, None] = _located(locations, (name, None))._replace(raw=True)
    return found


def _located(locations: Locations, key: Key) -> Location:
    location = locations.get(key)
    if location is None:
        raise FormatError(f"does not say where {key[0]!r} is")
    return location


def read_safetensors(directory: Path) -> tuple[Metadata, Locations]:
    """Ordinary safetensors files, and torch's HuggingFaceStorageWriter's, whose headers say where chunks begin."""
    names = sorted(path.name for path in directory.glob("*.safetensors"))
    reader = _core.open_side_by_side([(directory / name, None) for name in names])
    offsets = [_saved_offsets(path, metadata) for path, _, _, metadata in reader.files()]
    entries: dict[str, TensorStorageMetadata] = {}
    locations: Locations = {}
    for numbered, dtype, shape, file, _, _ in reader.infos():
        name = numbered.partition("/")[2]
        begin = offsets[file].get(name, [0] * len(shape))
        entry = entries.get(name)
        if entry is None:
            entry = TensorStorageMetadata(TensorProperties(dtype=DTYPES[dtype]), torch.Size([0] * len(shape)), [])
            entries[name] = entry
        if len(begin) != len(shape) or len(entry.size) != len(shape) or (name, tuple(begin)) in locations:
            raise FormatError(f"{directory / names[file]}: tensor {name!r} does not fit another chunk of it")
        ends = [each + size for each, size in zip(begin, shape, strict=True)]
        entry.size = torch.Size(max(each, end) for each, end in zip(entry.size, ends, strict=True))
        entry.chunks.append(ChunkStorageMetadata(torch.Size(begin), torch.Size(shape)))
        locations[name, tuple(begin)] = Location(names[file], name)
    return Metadata(dict(entries)), locations


def _saved_offsets(path: Path, metadata: dict[str, str]) -> dict[str, list[int]]:
    try:
        said = json.loads(metadata.get("DCP_SHARDING_INFO", "{}"))
        return {name: [int(each) for each in entry["saved_offsets"]] for name, entry in said.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise FormatError(f"{path}: metadata 'DCP_SHARDING_INFO': not what torch writes: {problem!r}") from problem
