"""What can go wrong.

Every error of penstock is an :class:`Error`, and each kind is also the builtin that a caller would expect: a missing
file is a ``FileNotFoundError``, a broken one a ``ValueError``. All are a ``RuntimeError`` too, as those of torch are:
code that falls back to an older checkpoint catches that. ``str(error)`` is one line that names the file and the place;
``error.errno`` is the system's error number where there is one.
"""

from __future__ import annotations

from pickle import UnpicklingError

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BusyError",
    "CancelledError",
    "ChangedError",
    "DamagedCheckpointError",
    "DeviceError",
    "DirectoryError",
    "DistributedError",
    "Error",
    "FormatError",
    "IoError",
    "LayoutError",
    "LibraryError",
    "ModelError",
    "NoSpaceError",
    "NotFoundError",
    "OutOfMemoryError",
    "PermissionDeniedError",
    "SharedMemoryError",
    "TensorIndexError",
    "UnknownTensorError",
    "UnsupportedError",
    "UnsupportedFormatError",
    "UnsupportedTypeError",
]


class Error(RuntimeError):
    """The base of every error of penstock."""

    errno: int | None = None

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class NotFoundError(Error, FileNotFoundError):
    """A file or shard that does not exist."""


class PermissionDeniedError(Error, PermissionError):
    """The system refuses access."""


class DirectoryError(Error, IsADirectoryError):
    """A directory where a file was expected."""


class IoError(Error, OSError):
    """The system failed a read, write, sync or rename."""


class NoSpaceError(Error, OSError):
    """The filesystem or quota is full."""


class FormatError(Error, ValueError):
    """The bytes of a file break the rules of its format."""


class ArgumentError(Error, ValueError):
    """The caller asked for something that makes no sense."""


class ArgumentTypeError(ArgumentError, TypeError):
    """penstock.safetensors: an argument of the wrong type, such as a name that is not a string."""


class ChangedError(Error, OSError):
    """A file changed or shrank while it was read."""


class CancelledError(Error):
    """The progress callable returned False, or a job was cancelled."""


class BusyError(Error):
    """Another save is under way, and this one was not to wait."""


class OutOfMemoryError(Error, MemoryError):
    """The memory for a load could not be had."""


class DeviceError(Error, RuntimeError):
    """A device that is missing, can't be used, or failed a call."""


class UnsupportedError(Error, NotImplementedError):
    """Valid, but not something that this build, system or framework can do."""


class UnsupportedFormatError(FormatError, UnsupportedError):
    """A file that may be sound, but holds what penstock does not read: a class, a compressed record. torch might."""


class DamagedCheckpointError(FormatError, UnpicklingError, EOFError):
    """penstock.fastpersist.serialization: a damaged torch file. It is each of the kinds that torch.load raises then."""


class UnknownTensorError(Error, KeyError):
    """A tensor that the checkpoint does not have."""


class TensorIndexError(Error, IndexError):
    """An index that does not fit the tensor, or is not a basic one."""


class SharedMemoryError(ArgumentError):
    """Tensors whose memory overlaps, in a save that was not told what to do with them."""


class DistributedError(Error):
    """Another rank failed, died or did not answer, or has another file."""


class LibraryError(Error, ModuleNotFoundError):
    """A library is missing, or has not the public name that is needed."""


class UnsupportedTypeError(UnsupportedError, ValueError):
    """An element type that FlashPack has no name for."""


class ModelError(ArgumentError):
    """penstock.safetensors: tensors that share memory, or a file that does not fit its model."""


class LayoutError(UnsupportedError, ValueError):
    """penstock.safetensors: a sparse tensor, or another that has no plain memory."""
