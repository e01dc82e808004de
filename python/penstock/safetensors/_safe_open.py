"""safe_open: a file whose tensors are read one by one."""

from __future__ import annotations

import os
import weakref
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from .._frameworks import Landing, get_framework
from .._load import is_cpu
from .._reader import LazyTensor, Reader
from .._reader import open as open_reader
from ..errors import ArgumentError, ArgumentTypeError, Error, TensorIndexError, UnknownTensorError, UnsupportedError
from ._libraries import find_framework
from ._prefetch import Plan, PrefetchLoader, parse_plan
from ._reference import cache_for, called, one_path

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import IO


class TensorMeta(NamedTuple):
    """What a file's header says of a tensor. `data_offsets` count from the first byte behind the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class safe_open:  # noqa: N801
    """Opens a file: ``with safe_open("model.safetensors", framework="pt") as f: f.get_tensor("wte")``.

    framework: "pt" (or "torch", "pytorch"), "np" (or "numpy"), "flax" (or "jax"), "tf" (or "tensorflow"), "paddle" or
        "mlx".
    device: where tensors are put; other than the CPU needs torch.
    backend: "mmap", or "pread", which maps nothing.
    """

    def __init__(
        self, filename: str | os.PathLike[str], framework: str, device: str | int = "cpu", *, backend: str = "mmap"
    ) -> None:
        own, self._library = find_framework(framework)
        self._framework = get_framework(own)
        self._device = self._device_of(device)
        self._opened: Reader | None = open_reader(one_path(filename), own, cache=cache_for(backend))

    @property
    def _reader(self) -> Reader:
        if self._opened is None:
            raise ArgumentError("the file is closed")
        return self._opened

    def keys(self) -> list[str]:
        """The names, sorted."""
        return sorted(self._reader)

    def offset_keys(self) -> list[str]:
        """The names, in the order their bytes lie in the file."""
        return list(self._reader)

    def metadata(self) -> dict[str, str] | None:
        """The file's metadata; None when it has none."""
        return self._reader.metadata or ({} if _has_metadata(self._reader.files[0].path) else None)

    def get_tensor(self, name: str) -> Any:
        """One tensor, whole."""
        return self._convert(name, self._read(self._find(name)))

    def get_tensors(self) -> dict[str, Any]:
        """Every tensor."""
        self._framework.require(self._reader.core.infos)
        landing = self._landing
        tensors, _ = self._reader.core.load(None, self._reader.options(), None, landing.build, landing.allocator)
        return {name: self._convert(name, tensor) for name, tensor in tensors.items()}

    def get_slice(self, name: str) -> PySafeSlice:
        """One tensor that is read when it is indexed."""
        return PySafeSlice(self, self._find(name))

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """What the header says of a tensor; no data is read."""
        tensor = self._find(name)
        begin = tensor.offset - self._data_begins[tensor.file]
        return TensorMeta(tensor.dtype, list(tensor.shape), (begin, begin + tensor.nbytes))

    def prefetch(
        self, plan: Plan | None = None, *, device: str | int | None = None, threads: int = 8
    ) -> PrefetchLoader:
        """Begins to read tensors in the background; the `PrefetchLoader` hands each out once.

        plan: which tensors, by name: None for all of one, or a slice of its first dimension with step 1, whose bounds
            must be rows that there are. By default every tensor.
        device: where they are put, by default where the file was opened for.
        threads: at most so many read and copy, and never more than there are processors.
        """
        reader = self._reader
        if not isinstance(threads, int) or threads < 1:
            raise ArgumentError(f"threads must be a number from 1 on, not {threads!r}")
        landing = self._landing if device is None else self._landing_on(self._device_of(device))
        wanted = parse_plan(plan, reader, str(reader.files[0].path))
        names = {each.name for each in wanted}
        self._framework.require(lambda: [info for info in reader.core.infos() if info[0] in names])
        return PrefetchLoader(reader, landing, self._convert, wanted, threads)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened = None  # slices and loaders that were given out go on reading

    def _read(self, tensor: LazyTensor) -> Any:
        return tensor._read([], self._landing, None)

    def _get(self, tensor: LazyTensor, index: Any) -> Any:
        return tensor._get(index, self._framework, self._landing)

    def _find(self, name: str) -> LazyTensor:
        if not isinstance(name, str):
            raise ArgumentTypeError(f"tensor names are strings, not {type(name).__name__}")
        reader = self._reader
        try:
            return reader[name]
        except UnknownTensorError:
            raise UnknownTensorError(f"{reader.files[0].path}: the file does not contain tensor {name}") from None

    @cached_property
    def _data_begins(self) -> dict[int, int]:
        """Where the data of each file begins: with the first tensor, for a file has no gaps."""
        begins: dict[int, int] = {}
        for info in self._reader.core.infos():
            begins.setdefault(info[3], info[4])
        return begins

    def _device_of(self, device: Any) -> Any:
        if is_cpu(device):
            return None
        if self._library is not None:
            raise ArgumentError(f"arrays of {self._library.name} are made on its own default device, not on {device}")
        return self._framework.device(device)

    @cached_property
    def _landing(self) -> Landing:
        """Asked for when there is something to put there."""
        return self._landing_on(self._device)

    def _landing_on(self, device: Any) -> Landing:
        return Landing(self._framework.build) if device is None else self._framework.landing(device)

    def _convert(self, name: str, tensor: Any) -> Any:
        return tensor if self._library is None else self._library.from_numpy(name, tensor)


class _safe_open_handle(safe_open):  # noqa: N801
    """`safe_open` for a file that is open already."""

    def __init__(self, f: IO[Any], framework: str, device: str | int = "cpu", *, backend: str = "mmap") -> None:
        if not hasattr(f, "fileno"):
            raise ArgumentTypeError(f"expected an open file, not {type(f).__name__}")
        descriptor = os.dup(f.fileno())  # the caller may close the other
        weakref.finalize(self, os.close, descriptor)
        path = f"/proc/self/fd/{descriptor}"
        with called(path, str(getattr(f, "name", "<file>"))):
            super().__init__(path, framework, device, backend=backend)


class PySafeSlice:
    """A tensor of an open file; indexing reads the part that is wanted."""

    def __init__(self, file: safe_open, tensor: LazyTensor) -> None:
        self._file = file
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        """The shape in the file."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """The file's name for the element type."""
        return self._tensor.dtype

    def __getitem__(self, index: Any) -> Any:
        try:
            return self._file._convert(self._tensor.name, self._file._get(self._tensor, index))
        except (TensorIndexError, UnsupportedError) as problem:
            if not _is_advanced(index):
                raise
            return self._whole(index, problem)

    def _whole(self, index: Any, problem: Error) -> Any:
        """Lists, masks and tensors of positions: the framework's own indexing knows what they mean."""
        try:
            return self._file._convert(self._tensor.name, self._file._read(self._tensor))[index]
        except (IndexError, TypeError) as error:
            raise TensorIndexError(f"{self._tensor.name}: {error}") from problem


def _has_metadata(path: Path) -> bool:
    """Whether the header has metadata, if only an empty one, which the engine takes for none."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return b'"__metadata__"' in file.read(length)


def _is_advanced(index: Any) -> bool:
    items = index if isinstance(index, tuple) else (index,)
    return any(
        isinstance(item, bool) or not (item is None or item is Ellipsis or isinstance(item, (int, slice)))
        for item in items
    )
