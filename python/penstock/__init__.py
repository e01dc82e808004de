"""penstock: model weights between storage and memory at the speed of the drive.

    tensors = penstock.load("model.safetensors")          # a dict of tensors
    part = penstock.open("model.safetensors")["wte"][:8]  # reads eight rows
    penstock.save(tensors, "copy.safetensors")            # atomic and durable

Tensors are torch's where torch is installed, else NumPy's. See also `stream`, `load_into`, `save_async`,
`save_parallel`, `CheckpointManager`, `convert`, `seal`, `verify`, `inspect`, `doctor`, and `penstock.safetensors` for
code that is written for the safetensors package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import errors
from ._core import MemoryPool
from ._core import version as _version
from ._files import Summary, VerifiedTensor, VerifyReport, convert, inspect, verify
from ._frameworks import PackedTensor, torch_is_installed
from ._into import LoadedInto, load_into
from ._job import SaveJob
from ._load import load, stream
from ._manager import CheckpointManager
from ._opaque import Opaque, OpaqueValue, OpaqueWarning
from ._options import Stats
from ._parallel import save_parallel
from ._reader import FileInfo, LazyTensor, Reader, open
from ._rename import add_prefix, strip_prefix
from ._rng import Rng, rng_state, set_rng_state
from ._save import save, save_async
from ._seal import SealedFile, seal
from ._select import TensorInfo
from ._shard import Shard
from ._step_files import SavedStep
from .errors import (
    ArgumentError,
    ArgumentTypeError,
    BusyError,
    CancelledError,
    ChangedError,
    DamagedCheckpointError,
    DeviceError,
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
    from . import dcp as dcp
    from . import fastpersist as fastpersist
    from . import flashpack as flashpack
    from . import measure as measure
    from . import safetensors as safetensors
    from ._accelerate import Accelerated, Acceleration, accelerate, accelerated, decelerate
    from ._doctor import Advice, Diagnosis, Leftover, doctor, remove_leftovers

__version__ = _version()

__all__ = [
    "Accelerated",
    "Acceleration",
    "Advice",
    "ArgumentError",
    "ArgumentTypeError",
    "BusyError",
    "CancelledError",
    "ChangedError",
    "CheckpointManager",
    "DamagedCheckpointError",
    "DeviceError",
    "Diagnosis",
    "DirectoryError",
    "DistributedError",
    "Error",
    "FileInfo",
    "FormatError",
    "IoError",
    "LayoutError",
    "LazyTensor",
    "Leftover",
    "LibraryError",
    "LoadedInto",
    "MemoryPool",
    "ModelError",
    "NoSpaceError",
    "NotFoundError",
    "Opaque",
    "OpaqueValue",
    "OpaqueWarning",
    "OutOfMemoryError",
    "PackedTensor",
    "PermissionDeniedError",
    "Reader",
    "Rng",
    "SaveJob",
    "SavedStep",
    "SealedFile",
    "Shard",
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
    "accelerate",
    "accelerated",
    "add_prefix",
    "convert",
    "decelerate",
    "doctor",
    "errors",
    "inspect",
    "load",
    "load_into",
    "open",
    "remove_leftovers",
    "rng_state",
    "save",
    "save_async",
    "save_parallel",
    "seal",
    "set_rng_state",
    "stream",
    "strip_prefix",
    "verify",
]

_ELSEWHERE = {  # rarely wanted
    **dict.fromkeys(("Accelerated", "Acceleration", "accelerate", "accelerated", "decelerate"), "_accelerate"),
    **dict.fromkeys(("Advice", "Diagnosis", "Leftover", "doctor", "remove_leftovers"), "_doctor"),
}
_SUBMODULES = frozenset({"measure", "safetensors"})
_TORCH_SUBMODULES = frozenset({"dcp", "fastpersist", "flashpack"})  # can't be imported without it


def __dir__() -> list[str]:
    found = {*__all__, *_SUBMODULES, "__version__"}
    return sorted(found | _TORCH_SUBMODULES if torch_is_installed() else found)


if not TYPE_CHECKING:  # whose readers would take any name for one that is found here

    def __getattr__(name: str) -> Any:
        if name in _SUBMODULES or name in _TORCH_SUBMODULES:
            return import_module(f"{__name__}.{name}")
        if name in _ELSEWHERE:
            return getattr(import_module(f"{__name__}.{_ELSEWHERE[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
