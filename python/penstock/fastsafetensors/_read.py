"""This rank's files: read by the engine in the order they lie in, whole or ahead of what is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from typing import TYPE_CHECKING, Any

from .._frameworks import PackedTensor, get_framework
from .._load import landing_on, load
from .._options import load_options, open_reader
from ..errors import ArgumentError, UnknownTensorError, UnsupportedError
from .allocation import count_tensor

if TYPE_CHECKING:
    from .. import _core
    from .common import SafeTensorsMetadata

# What a rank of a group reads before it is asked for.
_AHEAD = 128 * 2**20


class OwnFiles:
    """The files that this rank reads. Tensors are kept until they are taken, or until `close`.

    read_ahead: begin to read now and give tensors as they land; else all is read when the first is asked for, by
        `read_all`. What was read ahead and taken may be asked for again: then it is read again.
    dtype: convert to this type on the way; None keeps what the file has.
    """

    def __init__(
        self,
        paths: Sequence[str],
        names: Sequence[str],
        device: str,
        dtype: str | None,
        framework: str,
        read_ahead: bool,
    ) -> None:
        self._device = device
        self._dtype = dtype
        self._framework = framework
        self._paths = list(paths)
        self._names = list(names)
        self._landed: dict[str, Any] = {}
        self._reader: _core.Reader | None = open_reader(self._paths) if self._paths else None
        self._stream: _core.TensorStream | None = None
        self._build: Callable[..., dict[str, Any]] | None = None
        if read_ahead and self._reader is not None:
            self._start(self._reader)

    def read_all(self) -> None:
        """Reads what is not there yet, at once."""
        if self._reader is None or not self._names:
            return
        chosen = None if len(self._names) == len(self._reader) else self._names
        found = load(self._paths, self._device, select=chosen, dtype=self._dtype, framework=self._framework)
        self._landed = {name: self._counted(name, value) for name, value in found.items()}

    def take(self, name: str, *, keep: bool) -> Any:
        """A tensor, once it has landed; `keep` it for the next time."""
        if self._reader is None:
            raise ArgumentError(f"{name}: the files were closed")
        while name not in self._landed:
            if not self._advance():
                return self._read_again(name)
        return self._landed[name] if keep else self._landed.pop(name)

    def close(self) -> None:
        """Stops the reads and lets go of what was not taken. Tensors that were taken stay."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        self._reader = None
        self._landed = {}

    def _start(self, reader: _core.Reader) -> None:
        landing = landing_on(get_framework(self._framework), self._device, "auto")
        options = load_options(dtype=self._dtype, cache="auto", max_buffer=_AHEAD)
        self._build = landing.build
        self._stream = reader.stream(self._names, options, allocator=landing.allocator)
        self._stream.start()

    def _advance(self) -> bool:
        """Takes in what landed next; False at the end."""
        landed = None if self._stream is None else self._stream.next()
        if landed is None or self._build is None:
            return False
        for name, value in self._build(*landed).items():
            self._landed[name] = self._counted(name, value)
        return True

    def _read_again(self, name: str) -> Any:
        if name not in self._names:
            raise UnknownTensorError(f"{name} is not in {', '.join(self._paths)}")
        found = load(self._paths, self._device, select=[name], dtype=self._dtype, framework=self._framework)
        return self._counted(name, found[name])

    def _counted(self, name: str, value: Any) -> Any:
        found = self._converted(name, value)
        count_tensor(found)
        return found

    def _converted(self, name: str, value: Any) -> Any:
        """The engine converts floating types: the others here, as the peer does."""
        if self._dtype is None:
            return value
        if isinstance(value, PackedTensor):
            raise UnsupportedError(f"{name}: {value.dtype} can't be converted to {self._dtype}")
        if self._framework == "numpy":
            from .._numpy import DTYPES as ARRAY_TYPES

            return value.astype(ARRAY_TYPES[self._dtype], copy=False)
        from .._torch import DTYPES

        return value.to(DTYPES[self._dtype])


class FileTensors:
    """One file of a load, on every rank: what it holds, who reads it, and, there, its tensors."""

    def __init__(self, metadata: SafeTensorsMetadata, rank: int, lidx: int, own: OwnFiles | None) -> None:
        self.metadata = metadata
        self.rank = rank
        self.lidx = lidx
        self._own = own

    def take(self, name: str, *, keep: bool) -> Any:
        """A tensor of the file, on the rank that reads it."""
        if self._own is None:
            raise ArgumentError(f"{name}: {self.metadata.src} is read by rank {self.rank}")
        return self._own.take(name, keep=keep)

    def free_dev_ptrs(self) -> None:
        """Lets go of the rank's files; tensors that were handed out stay valid."""
        if self._own is not None:
            self._own.close()
            self._own = None


def names_of(metadata: SafeTensorsMetadata, keep: Callable[[str], bool] | None) -> Iterable[str]:
    """The tensors of a file that are wanted, in the order they lie in it."""
    return metadata.tensors if keep is None else (name for name in metadata.tensors if keep(name))


def in_turns(files: Iterable[tuple[SafeTensorsMetadata, Iterable[str]]]) -> Iterator[str]:
    """The tensors of files that different ranks read, such that about as much of each file has passed at any time.

    Who asks for them in this order lets all ranks read at once, and none far ahead.
    """

    def places(number: int, metadata: SafeTensorsMetadata, names: Iterable[str]) -> Iterator[tuple[int, int, str]]:
        return ((metadata.tensors[name].data_offsets[0], number, name) for name in names)

    turns = [places(number, *file) for number, file in enumerate(files)]
    return (name for _, _, name in merge(*turns))
