"""safe_open: a file whose tensors are read one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._frameworks import get_framework
from .._load import is_cpu
from .._reader import LazyTensor, Reader
from .._reader import open as open_reader
from ..errors import ArgumentError, Error, TensorIndexError, UnsupportedError
from ._reference import cache_for

if TYPE_CHECKING:
    import os
    from pathlib import Path
    from types import TracebackType


class safe_open:  # noqa: N801
    """Opens a file: ``with safe_open("model.safetensors", framework="pt") as f: f.get_tensor("wte")``.

    framework: "pt" (or "torch", "pytorch") or "np" (or "numpy"). device: where get_tensor and get_slice put what they read.
    """

    def __init__(
        self, filename: str | os.PathLike[str], framework: str, device: str | int = "cpu", *, backend: str = "mmap"
    ) -> None:
        self._framework = get_framework(framework)
        self._device = None if is_cpu(device) else self._framework.device(device)
        self._opened: Reader | None = open_reader(filename, framework, cache=cache_for(backend))

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
        return self._place(self._reader[name].load())

    def get_tensors(self) -> dict[str, Any]:
        """Every tensor."""
        tensors, _ = self._reader.core.load(None, self._reader.options(), None, self._framework.build)
        return {name: self._place(tensor) for name, tensor in tensors.items()}

    def get_slice(self, name: str) -> PySafeSlice:
        """One tensor that is read when it is indexed."""
        return PySafeSlice(self, self._reader[name])

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened = None  # slices that were given out go on reading

    def _place(self, tensor: Any) -> Any:
        return tensor if self._device is None else self._framework.move(tensor, self._device)


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
            return self._file._place(self._tensor[index])
        except (TensorIndexError, UnsupportedError) as problem:
            if not _is_advanced(index):
                raise
            return self._whole(index, problem)

    def _whole(self, index: Any, problem: Error) -> Any:
        """Lists, masks and tensors of positions: the framework's own indexing knows what they mean."""
        try:
            return self._file._place(self._tensor.load())[index]
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
