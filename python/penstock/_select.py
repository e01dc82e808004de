"""`select=`: which tensors of a checkpoint are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Union

from ._nearest import has_wildcards, suggest
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
    """The names that `select` wants; None for all. A name or glob that no tensor answers to is an error."""
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
        found = [entry] if entry in names else [name for name in names if fnmatchcase(name, entry)]
        if not found:
            raise unknown_tensor(reader, entry, is_glob=has_wildcards(entry))
        wanted.update(dict.fromkeys(found))
    return list(wanted)


def unknown_tensor(reader: _core.Reader, wanted: object, *, is_glob: bool = False) -> UnknownTensorError:
    """The error for a name or glob that no tensor answers to."""
    text = str(wanted)
    what = "no tensor matches" if is_glob else "no tensor is called"
    files = reader.files()
    others = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return UnknownTensorError(f"{files[0][0]}{others}: {what} {wanted!r}{suggest(text, reader.names())}")
