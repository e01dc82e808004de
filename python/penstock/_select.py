"""`select=`: which tensors of a checkpoint are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Union

from .errors import ArgumentError, UnknownTensorError

if TYPE_CHECKING:
    from . import _core
    from ._frameworks import Info


class TensorInfo(str):
    """A tensor's name that also knows what the file says of it. It is what a `select=` callable is given."""

    __slots__ = ("dtype", "file", "nbytes", "offset", "shape")
    dtype: str
    shape: tuple[int, ...]
    file: int
    offset: int
    nbytes: int

    def __new__(cls, info: Info) -> TensorInfo:
        self = super().__new__(cls, info[0])
        _, self.dtype, self.shape, self.file, self.offset, self.nbytes = info
        return self

    def __reduce__(self) -> tuple[type[TensorInfo], tuple[Info]]:
        return TensorInfo, ((self.name, self.dtype, self.shape, self.file, self.offset, self.nbytes),)

    @property
    def name(self) -> str:
        """The name as a plain string."""
        return str(self)


Select = Union[str, Iterable[str], Callable[[TensorInfo], Any], None]


def resolve(select: Select, reader: _core.Reader) -> list[str] | None:
    """The names that `select` wants; None for all. An entry that is no tensor's name and no pattern is an error."""
    if select is None:
        return None
    if callable(select):
        return [info[0] for info in reader.infos() if select(TensorInfo(info))]
    entries = [select] if isinstance(select, str) else list(select)
    names = dict.fromkeys(reader.names())
    wanted: dict[str, None] = {}
    for entry in entries:
        if not isinstance(entry, str):
            raise ArgumentError(f"select: names are strings, not {type(entry).__name__}")
        wanted.update(dict.fromkeys([entry] if entry in names else _match(entry, names)))
    return list(wanted)


def _match(pattern: str, names: Iterable[str]) -> list[str]:
    if not any(character in pattern for character in "*?["):
        raise UnknownTensorError(f"no tensor is called {pattern!r}")
    return [name for name in names if fnmatchcase(name, pattern)]
