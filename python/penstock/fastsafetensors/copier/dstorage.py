"""DirectStorage is of Windows: what is here says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import UnsupportedError
from ..common import SafeTensorsMetadata
from ..frameworks import FrameworkOpBase
from ..st_types import Device
from ._engine import EngineCopier
from .registry import CopierConstructFunc


class DirectStorageUnavailableError(UnsupportedError):
    """There is no DirectStorage here. It is a RuntimeError."""


class DStorageFileCopier(EngineCopier):
    """Reads one file by the engine. `stream_reader` is not needed."""

    def __init__(
        self, metadata: SafeTensorsMetadata, device: Device, stream_reader: Any, framework: FrameworkOpBase[Any, Any]
    ) -> None:
        super().__init__(metadata, device, framework)


def resolve_dstorage_dll_dir() -> Path:
    """An error: there is no such folder."""
    raise DirectStorageUnavailableError("DirectStorage is a library of Windows, and penstock runs on Linux")


def load_dstorage_dlls() -> None:
    """An error, as `resolve_dstorage_dll_dir`."""
    resolve_dstorage_dll_dir()


def init_dstorage(device_id: int = 0, framework: FrameworkOpBase[Any, Any] | None = None) -> None:
    """An error, as `resolve_dstorage_dll_dir`."""
    resolve_dstorage_dll_dir()


def new_dstorage_copier(device: Device, **kwargs: Any) -> CopierConstructFunc:
    """An error, as `resolve_dstorage_dll_dir`."""
    raise DirectStorageUnavailableError(f"{device.as_str()}: {resolve_dstorage_dll_dir()}")
