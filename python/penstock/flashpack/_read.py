"""A FlashPack file as tensors by name: read when they are asked for, or views of blocks that are read already."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .. import _core
from .._options import load_options, open_reader, path_text
from .._torch import DTYPES, landing
from ..errors import FormatError
from ._storage import FlashTensorStorage, index_records

if TYPE_CHECKING:
    from .._options import Path

_FORMAT = "flashpack"
_MAX_REPLACEMENTS = 10


class StoredTensor(NamedTuple):
    """A tensor in a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class OpenFile:
    """Reads the tensors that are asked for, and no others."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self._reader = _open(path)
        self._landing = landing(device)

    def tensors(self) -> list[StoredTensor]:
        """What the file holds."""
        return [StoredTensor(name, DTYPES[dtype], shape) for name, dtype, shape, *_ in self._reader.infos()]

    def load(self, names: list[str] | None) -> dict[str, torch.Tensor]:
        """These tensors, or all, on the device."""
        place = self._landing
        tensors: dict[str, torch.Tensor] = {}
        if not place.passes_host:
            tensors, _ = self._reader.load(names, load_options(), None, place.build, place.allocator)
            return tensors
        with closing(self._reader.stream(names, load_options())) as stream:
            while (landed := stream.next()) is not None:
                tensors.update(place.build(*landed))
        return tensors


def _open(path: Path) -> _core.Reader:
    if os.path.isdir(path):
        _core.flashpack_footer(
            path_text(path)
        )  # refuses it, as the package does; `penstock.load` takes folders of shards
    try:
        reader = open_reader(path)
    except FormatError:
        _core.flashpack_footer(path_text(path))  # says it in terms of the format that was expected
        raise
    others = [(name, kind) for name, _, kind, *_ in reader.files() if kind != _FORMAT]
    if others:
        del reader  # the traceback would keep the file open
        raise FormatError(f"{others[0][0]}: is a {others[0][1]} file, not a FlashPack one")
    return reader


def open_blocks(path: Path) -> tuple[str, _core.Reader]:
    """The footer and the blocks of one and the same file, whatever takes its name meanwhile."""
    text = path_text(path)
    for _ in range(_MAX_REPLACEMENTS):
        before = _identity(text)
        footer, reader = _core.flashpack_footer(text), _core.open_flashpack_blocks(text)
        if _identity(text) == before:
            return footer, reader
    raise FormatError(f"{text}: is replaced again and again while it is opened")


def _identity(path: str) -> tuple[int, int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None  # Opening it says why.
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class ReadBlocks:
    """The same of blocks that are in memory."""

    def __init__(self, storage: FlashTensorStorage, metadata: dict[str, Any]) -> None:
        self._storage = storage
        self._metadata = metadata

    def tensors(self) -> list[StoredTensor]:
        """What the blocks hold."""
        return [
            StoredTensor(record.name, self._storage.block(record.macroblock).dtype, tuple(record.shape))
            for record in index_records(self._metadata)
        ]

    def load(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Views of the blocks."""
        from .deserialization import iterate_from_flash_tensor

        wanted = set(names)
        views = iterate_from_flash_tensor(self._storage, self._metadata)
        return {name: view for name, view in views if name in wanted}
