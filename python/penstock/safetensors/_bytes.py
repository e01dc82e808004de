"""Checkpoints as bytes objects: the engine reads and writes files, so these pass through files that live in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._load import load
from .._save import save
from ..errors import ArgumentTypeError, NoSpaceError
from ._reference import called

_MEMORY_DIRECTORY = "/dev/shm"
_NAME = "<bytes>"


def load_bytes(data: bytes, framework: str) -> dict[str, Any]:
    """The tensors of a file that is in memory."""
    with file_of_bytes(data) as path:
        return load(path, framework=framework, cache="buffered")


@contextmanager
def file_of_bytes(data: bytes) -> Iterator[str]:
    """A file that holds these bytes, for as long as it is needed."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ArgumentTypeError(f"expected bytes, not {type(data).__name__}")
    descriptor = os.memfd_create("safetensors", os.MFD_CLOEXEC)
    path = f"/proc/self/fd/{descriptor}"
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(data)
        with called(path, _NAME):
            yield path
    finally:
        os.close(descriptor)


def save_bytes(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None, *, shared: str = "refuse") -> bytes:
    """What the file would hold."""
    if os.access(_MEMORY_DIRECTORY, os.W_OK):
        try:
            return _save_in(_MEMORY_DIRECTORY, tensors, metadata, shared)
        except NoSpaceError:  # Containers have little of it: 64 MB where nothing else was asked for.
            pass
    return _save_in(None, tensors, metadata, shared)


def _save_in(
    directory: str | None, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None, shared: str
) -> bytes:
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        path = Path(folder) / "tensors.safetensors"
        with called(str(path), _NAME):
            save(tensors, path, format="safetensors", metadata=metadata, shared=shared, durable=False, checksums=False)
        return path.read_bytes()
