"""Directories of torch's own writers: FileSystemWriter's, whose metadata is a pickle, and safetensors files."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from .. import _core
from .._torch import DTYPES
from ..errors import FormatError, NotFoundError, UnsupportedError, UnsupportedFormatError
from ._metadata import Key, Location, Locations, key_of
from ._names import TORCH_METADATA, is_plain_name

# All that a metadata of torch's is made of: plain data. Nothing else is imported, whatever the pickle names.
_ALLOWED = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.distributed._shard.sharded_tensor.metadata": {"MEM_FORMAT_ENCODING", "TensorProperties"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}
_LARGEST = 1 << 30


class _Unpickler(pickle.Unpickler):
    """Makes the classes of torch's metadata and plain data, and refuses to look up anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(vars(torch).get(name), (torch.dtype, torch.layout, torch.memory_format)):
            return vars(torch)[name]
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        raise UnsupportedFormatError(f"{module}.{name} is not of torch's metadata, and is not imported")


def read_torch(directory: Path) -> tuple[Metadata, Locations]:
    """What torch's FileSystemWriter wrote. Its pickle makes the classes of torch's metadata, and nothing else."""
    path = directory / TORCH_METADATA
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
    except FileNotFoundError as problem:
        raise NotFoundError(f"{path}: does not exist") from problem
    try:
        metadata = _Unpickler(io.BytesIO(text)).load()
    except UnsupportedFormatError as problem:
        raise UnsupportedFormatError(f"{path}: {problem}") from problem
    except Exception as problem:  # a pickle can fail in any way
        raise FormatError(f"{path}: is no metadata of torch's: {type(problem).__name__}: {problem}") from problem
    try:
        locations = {key_of(index): _location(index, info) for index, info in metadata.storage_data.items()}
        return metadata, _complete(metadata, locations)
    except (AttributeError, TypeError, ValueError) as problem:
        if isinstance(problem, (FormatError, UnsupportedError)):
            raise type(problem)(f"{path}: {problem}") from problem
        raise FormatError(f"{path}: is no metadata of torch's: {problem}") from problem


def _location(index: Any, info: Any) -> Location:
    if getattr(info, "transform_descriptors", None):
        raise UnsupportedFormatError(f"{index.fqn!r} was written by an extension: {info.transform_descriptors[0]!r}")
    if not (isinstance(info.relative_path, str) and is_plain_name(info.relative_path)):
        raise FormatError(f"{index.fqn!r} is in {info.relative_path!r}, which is not a plain file name")
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
