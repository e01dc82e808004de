"""Which framework's tensors a load gives: torch where it is installed, else NumPy. Imported at the first load."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from .errors import ArgumentError

if TYPE_CHECKING:
    from . import _core
    from ._indexing import Basic

Info = tuple[str, str, tuple[int, ...], int, int, int]  # name, dtype, shape, file, offset, nbytes
Row = tuple[str, str, tuple[int, ...], int, int, int]  # name, dtype, shape, memory, offset in it, nbytes

_MODULES = {"torch": "_torch", "pt": "_torch", "pytorch": "_torch", "numpy": "_numpy", "np": "_numpy"}


class Framework(Protocol):
    """What penstock._torch and penstock._numpy offer to loads."""

    def require(self, infos: Callable[[], Iterable[Info]]) -> None:
        """Raises when a tensor of these could not be given, before anything is read."""

    def build(self, memories: Sequence[_core.Memory], rows: Iterable[Row]) -> dict[str, Any]:
        """Tensors, by name, that point into the memories."""

    def pick(self, tensor: Any, basic: Basic) -> Any:
        """What an index picks of the tensor that covers it."""

    def device(self, device: Any) -> Any:
        """A device argument, other than the CPU, for `move`; refused when it makes no sense."""

    def move(self, tensor: Any, device: Any) -> Any:
        """The tensor on that device."""


def torch_is_installed() -> bool:
    """Whether torch can be imported, without importing it."""
    return "torch" in sys.modules or importlib.util.find_spec("torch") is not None


def get_framework(name: str | None = None) -> Framework:
    """The framework of that name; by default torch where it is installed, else NumPy."""
    if name is None:
        name = "torch" if torch_is_installed() else "numpy"
    module = _MODULES.get(name)
    if module is None:
        raise ArgumentError(f'framework must be "torch" or "numpy", not {name!r}')
    return cast("Framework", import_module(f"penstock.{module}"))
