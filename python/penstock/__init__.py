"""penstock: model weights between storage and memory at the speed of the drive.

    tensors = penstock.load("model.safetensors")          # a dict of tensors
    part = penstock.open("model.safetensors")["wte"][:8]  # reads eight rows
    penstock.save(tensors, "copy.safetensors")            # atomic and durable

Tensors are torch's where torch is installed, else NumPy's. See also `stream`, `load_into`, `save_async`, `convert`,
`verify`, `inspect`, `doctor`, and `penstock.safetensors` for code that is written for the safetensors package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import errors
from ._core import MemoryPool
from ._core import version as _version
from ._files import Summary, VerifiedTensor, VerifyReport, convert, inspect, verify
from ._frameworks import PackedTensor
from ._into import LoadedInto, load_into
from ._job import SaveJob
from ._load import load, stream
from ._options import Stats
from ._reader import FileInfo, LazyTensor, Reader, open
from ._save import save, save_async
from ._select import TensorInfo
from .errors import (
    ArgumentError,
    BusyError,
    CancelledError,
    ChangedError,
    DirectoryError,
    DistributedError,
    Error,
    FormatError,
    IoError,
    LayoutError,
    LibraryError,
    ModelError,
    NoSpaceError,
    NotFoundError,
    OutOfMemoryError,
    PermissionDeniedError,
    SharedMemoryError,
    TensorIndexError,
    UnknownTensorError,
    UnsupportedError,
    UnsupportedFormatError,
    UnsupportedTypeError,
)

if TYPE_CHECKING:
    from ._doctor import Advice, Diagnosis, doctor

__version__ = _version()

__all__ = [
    "Advice",
    "ArgumentError",
    "BusyError",
    "CancelledError",
    "ChangedError",
    "Diagnosis",
    "DirectoryError",
    "DistributedError",
    "Error",
    "FileInfo",
    "FormatError",
    "IoError",
    "LayoutError",
    "LazyTensor",
    "LibraryError",
    "LoadedInto",
    "MemoryPool",
    "ModelError",
    "NoSpaceError",
    "NotFoundError",
    "OutOfMemoryError",
    "PackedTensor",
    "PermissionDeniedError",
    "Reader",
    "SaveJob",
    "SharedMemoryError",
    "Stats",
    "Summary",
    "TensorIndexError",
    "TensorInfo",
    "UnknownTensorError",
    "UnsupportedError",
    "UnsupportedFormatError",
    "UnsupportedTypeError",
    "VerifiedTensor",
    "VerifyReport",
    "convert",
    "doctor",
    "errors",
    "inspect",
    "load",
    "load_into",
    "open",
    "save",
    "save_async",
    "stream",
    "verify",
]

_SUBMODULES = frozenset({"fastpersist", "flashpack", "measure", "safetensors"})


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    if name in {"Advice", "Diagnosis", "doctor"}:  # rarely wanted
        return getattr(import_module(f"{__name__}._doctor"), name)
    if name == "save_parallel":  # needs torch
        return import_module(f"{__name__}._torch.parallel").save_parallel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
