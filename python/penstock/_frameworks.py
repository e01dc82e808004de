"""Frameworks: which one's tensors a load gives (torch's where it is installed, else NumPy's), what is asked of each.

They are imported at the first load.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from .errors import ArgumentError, LibraryError

if TYPE_CHECKING:
    from . import _core
    from ._indexing import Basic
    from ._shard import Part

Info = tuple[str, str, tuple[int, ...], int, int, int]  # name, dtype, shape, file, offset, nbytes
Row = tuple[str, str, tuple[int, ...], int, int, int]  # name, dtype, shape, memory, offset in it, nbytes

_MODULES = {
    "torch": "_torch",
    "pt": "_torch",
    "pytorch": "_torch",
    "numpy": "_numpy",
    "np": "_numpy",
    "jax": "_jax",
    "flax": "_jax",
}


class PackedTensor(NamedTuple):
    """A tensor of a sub-byte type that the framework has no dtype for, as its packed bytes.

    Loads give it for F6_E2M3 and F6_E3M2, and under NumPy (or for an odd last dimension) for F4 too. `data` is a
    one-dimensional uint8 tensor or array, bit for bit what the file holds; ``penstock.save`` writes it back as it was.
    """

    dtype: str
    shape: tuple[int, ...]
    data: Any

    @property
    def nbytes(self) -> int:
        """Bytes of `data`."""
        return int(self.data.nbytes)


class Source(NamedTuple):
    """Memory to be written. `owner` keeps it alive; `byte_strides` is None when it is contiguous.

    What is not in memory that the engine can read has `read` in its place: called as read(offset, nbytes, address),
    from any thread, it puts these bytes of the tensor, whole elements, at an address.
    """

    dtype: str
    shape: tuple[int, ...]
    address: int
    byte_strides: tuple[int, ...] | None
    owner: Any
    read: Callable[[int, int, int], None] | None = None


class Landing(NamedTuple):
    """Where loaded tensors are to be, and how they are made.

    Without an allocator their memory is the host's; where that is only passed, `build` moves them on.
    """

    build: Callable[[Sequence[_core.Memory], Iterable[Row]], dict[str, Any]]
    allocator: _core.Allocator | None = None
    device: Any = None  # None: the CPU
    passes_host: bool = False


class Place(NamedTuple):
    """A tensor that can be loaded into. Places with equal `identity` are the same memory."""

    value: Any
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    identity: Any
    address: int | None  # None: the memory can't be read into directly
    obstacle: str | None = None  # why it can't be written to
    on_meta: bool = False  # has a shape and a type, and no memory
    device: Any = None  # other than the CPU
    is_copy: bool = False  # of something in the module that only load_state_dict reaches
    # Of a tensor that several ranks share: what of it this rank has, and the tensor of its own that holds that. `shape`
    # is the whole one's, `nbytes` and `address` are this rank's.
    part: Part = ()
    local: Any = None


class Framework(Protocol):
    """What penstock._torch, penstock._numpy and penstock._jax offer."""

    def require(self, infos: Callable[[], Iterable[Info]]) -> None:
        """Raises when a tensor of these could not be given, before anything is read."""

    def build(self, memories: Sequence[_core.Memory], rows: Iterable[Row]) -> dict[str, Any]:
        """Tensors, by name, that point into the memories."""

    def pick(self, tensor: Any, basic: Basic) -> Any:
        """What an index picks of the tensor that covers it."""

    def device(self, device: Any) -> Any:
        """A device argument, other than the CPU, for `landing`; refused when it makes no sense."""

    def landing(self, device: Any) -> Landing:
        """Where tensors for a device other than the CPU are to be; refused when it is not there."""

    def streams(self, values: Iterable[Any]) -> list[tuple[int, int]]:
        """What the caller uses of the devices of these tensors: their numbers, and the streams' addresses."""

    def source(self, name: str, value: Any) -> Source | None:
        """How to write a tensor; None when the value is none of this framework."""

    def from_any(self, value: Any) -> Any:
        """A tensor over the memory of another library's, which has DLPack."""

    def place(self, name: str, value: Any) -> Place | None:
        """A tensor that can be loaded into; None when the value is none of this framework."""

    def replacement(self, old: Any, loaded: Any) -> Any:
        """The loaded tensor in the role of the old one."""

    def mark_changed(self, value: Any) -> None:
        """Tells the framework that the tensor's memory was written to."""

    def copy_into(self, old: Any, loaded: Any) -> None:
        """Copies the loaded tensor to where the memory could not be read into."""


def torch_is_installed() -> bool:
    """Whether torch can be imported, without importing it."""
    return "torch" in sys.modules or importlib.util.find_spec("torch") is not None


def gives_torch(name: str | None) -> bool:
    """Whether a load with this `framework=` gives tensors of torch."""
    return torch_is_installed() if name is None else _MODULES.get(name) == "_torch"


def require_torch(what: str) -> None:
    """Refuses what needs torch where it is not installed."""
    if not torch_is_installed():
        raise LibraryError(f"{what} needs torch, which is not installed: pip install torch")


def imported_frameworks() -> list[Framework]:
    """Those that the process has imported: whoever has a tensor has imported its framework."""
    return [get_framework(name) for name in ("torch", "numpy", "jax") if name in sys.modules]


def get_framework(name: str | None = None) -> Framework:
    """The framework of that name; by default torch where it is installed, else NumPy."""
    if name is None:
        name = "torch" if torch_is_installed() else "numpy"
    module = _MODULES.get(name)
    if module is None:
        raise ArgumentError(f'framework must be "torch", "numpy" or "jax", not {name!r}')
    if module == "_torch":
        require_torch(f"framework={name!r}")
    return cast("Framework", import_module(f"penstock.{module}"))
