"""Checkpoints as bytes objects: the engine reads and writes files, so these pass through files that live in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._load import load
from .._save import save
from ..errors import ArgumentError

_MEMORY_DIRECTORY = "/dev/shm"


def load_bytes(data: bytes, framework: str) -> dict[str, Any]:
    """The tensors of a file that is in memory."""
    if not isinstance(data, bytes):
        raise ArgumentError(f"expected bytes, not {type(data).__name__}")
    descriptor = os.memfd_create("safetensors", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(data)
        return load(f"/proc/self/fd/{descriptor}", framework=framework, cache="buffered")
    finally:
        os.close(descriptor)


def save_bytes(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None, *, shared: str = "refuse") -> bytes:
    """What the file would hold."""
    directory = _MEMORY_DIRECTORY if os.access(_MEMORY_DIRECTORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        path = Path(folder) / "tensors.safetensors"
        save(tensors, path, format="safetensors", metadata=metadata, shared=shared, durable=False)
        return path.read_bytes()
