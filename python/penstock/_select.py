"""`select=`: which tensors of a checkpoint are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Union

from ._nearest import has_wildcards, suggest
from .errors import ArgumentError, UnknownTensorError

if TYPE_CHECKING:
    from ._frameworks import Info


class Source(Protocol):
    """What tensors are chosen of: a `_core.Reader`, or what stands for one."""

    def names(self) -> list[str]: ...
    def infos(self) -> list[Info]: ...
    def files(self) -> Sequence[tuple[Any, ...]]: ...


class _Infos:
    """What a checkpoint says of its tensors, by their numbers: looked up when the first of them is asked about."""

    def __init__(self, reader: Source) -> None:
        self._reader = reader

    @cached_property
    def all(self) -> list[Info]:
        return self._reader.infos()


class TensorInfo(str):
    """A tensor's name that also knows what the file says of it. It is what a `select=` callable is given."""

    __slots__ = ("_infos", "_number")
    _infos: _Infos | list[Info]
    _number: int

    def __new__(cls, info: Info) -> TensorInfo:
        return cls._of(info[0], [info], 0)

    @classmethod
    def _of(cls, name: str, infos: _Infos | list[Info], number: int) -> TensorInfo:
        self = super().__new__(cls, name)
        self._infos, self._number = infos, number
        return self

    def __reduce__(self) -> tuple[type[TensorInfo], tuple[Info]]:
        return TensorInfo, (self._info,)

    @property
    def _info(self) -> Info:
        return (self._infos.all if isinstance(self._infos, _Infos) else self._infos)[self._number]

    @property
    def dtype(self) -> str:
        """The element type, as the file names it."""
        return self._info[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self._info[2]

    @property
    def file(self) -> int:
        """Which of the files it is in."""
        return self._info[3]

    @property
    def offset(self) -> int:
        """Where it begins in its file."""
        return self._info[4]

    @property
    def nbytes(self) -> int:
        """Its bytes there."""
        return self._info[5]

    @property
    def name(self) -> str:
        """The name as a plain string."""
        return str(self)


class NameFilter:
    """A `select=` callable that is given names alone: making 50,000 `TensorInfo` took longer than asking it."""

    def __init__(self, keep: Callable[[str], Any]) -> None:
        self.keep = keep

    def __call__(self, name: str) -> Any:
        return self.keep(name)


Select = Union[str, Iterable[str], Callable[[TensorInfo], Any], None]


def resolve(select: Select, reader: Source) -> list[str] | None:
    """The names that `select` wants; None for all. A name or glob that no tensor answers to is an error."""
    if select is None:
        return None
    if isinstance(select, NameFilter):
        return list(filter(select.keep, reader.names()))
    if callable(select):
        # One after the other, and only names: a file may have a hundred thousand.
        infos = _Infos(reader)
        return [name for number, name in enumerate(reader.names()) if select(TensorInfo._of(name, infos, number))]
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


def unknown_tensor(reader: Source, wanted: object, *, is_glob: bool = False) -> UnknownTensorError:
    """The error for a name or glob that no tensor answers to."""
    text = str(wanted)
    what = "no tensor matches" if is_glob else "no tensor is called"
    files = reader.files()
    others = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return UnknownTensorError(f"{files[0][0]}{others}: {what} {wanted!r}{suggest(text, reader.names())}")
