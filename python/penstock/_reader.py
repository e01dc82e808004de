"""penstock.open: a checkpoint as a mapping of tensors that are read when they are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ._dtypes import BITS, numel
from ._frameworks import Landing, PackedTensor, get_framework
from ._indexing import Basic, parse_index
from ._opaque import OpaqueValue
from ._options import LoadTuning, Paths, is_text, load_options, open_reader
from ._select import unknown_tensor
from ._types import DType, Tensor, Unpack
from .errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from types import TracebackType

    from . import _core
    from ._frameworks import Framework, Info


class FileInfo(NamedTuple):
    """One file of a checkpoint."""

    path: Path
    size: int
    format: str
    metadata: dict[str, str]


def open(paths: Paths, framework: str | None = None, *, cache: str = "auto", **tuning: Unpack[LoadTuning]) -> Reader:
    """Opens a checkpoint: reads and checks its headers, and no data.

    ``f = penstock.open("model.safetensors")`` maps names to `LazyTensor`s: ``f["lm_head.weight"][2:5]`` reads those
    rows and nothing else. `framework`, `cache` and `tuning` are as in `load`.
    """
    options = partial(load_options, cache=cache, **tuning)
    options()  # refuses at once what every read would
    return Reader(open_reader(paths), framework, options)


class Reader(Mapping[str, "LazyTensor"]):
    """An open checkpoint. Tensors that were loaded stay valid when it is closed."""

    def __init__(self, reader: _core.Reader, framework: str | None, options: partial[_core.LoadOptions]) -> None:
        self._reader: _core.Reader | None = reader
        self._framework = framework
        self.options = options

    @property
    def core(self) -> _core.Reader:
        """The engine's reader; an error once this is closed."""
        if self._reader is None:
            raise ArgumentError("the reader is closed")
        return self._reader

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of all files together; where two disagree, the first one's."""
        return self.core.metadata()

    @property
    def files(self) -> list[FileInfo]:
        """The files, in the order of their tensors."""
        return [FileInfo(*file) for file in self.core.files()]

    @property
    def opaque(self) -> list[OpaqueValue]:
        """What of a torch checkpoint is no data: objects, which are named and never made. Their tensors are here."""
        return [OpaqueValue(*value) for value in self.core.opaque()]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(info[5] for info in self.core.infos())

    @property
    def resident_bytes(self) -> int:
        """How many of them the page cache holds now."""
        return self.core.resident_bytes()

    def close(self) -> None:
        """Lets the files go."""
        self._reader = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, name: str) -> LazyTensor:
        info = self._find(name)
        if info is None:
            raise unknown_tensor(self.core, name)
        return LazyTensor(self, info)

    def get(self, name: str, default: Any = None) -> LazyTensor | Any:
        """The tensor of that name, or the default."""
        info = self._find(name)
        return default if info is None else LazyTensor(self, info)

    def __contains__(self, name: object) -> bool:
        return self._find(name) is not None

    def _find(self, name: object) -> Info | None:
        core = self.core
        return core.find(name) if isinstance(name, str) and is_text(name) else None

    def __iter__(self) -> Iterator[str]:
        return iter(self.core.names())

    def __len__(self) -> int:
        return len(self.core)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        if self._reader is None:
            return "<penstock.Reader, closed>"
        files = self.files
        name = str(files[0].path) if len(files) == 1 else f"{len(files)} files"
        return f"<penstock.Reader of {name}, {len(self)} tensors>"


class LazyTensor:
    """A tensor in a file. Indexing reads the bytes that the index covers, and gives what NumPy would.

    Integers, slices with any step, None and an ellipsis are understood. `dtype` is the file's name for it, such as
    "BF16".
    """

    __slots__ = ("_reader", "dtype", "file", "name", "nbytes", "offset", "shape")

    def __init__(self, reader: Reader, info: Info) -> None:
        self._reader = reader
        self.name, self.dtype, self.shape, self.file, self.offset, self.nbytes = info

    @property
    def ndim(self) -> int:
        """Dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements."""
        return numel(self.shape)

    def load(self, *, dtype: DType = None, framework: str | None = None) -> Tensor:
        """Reads the whole tensor, converted to `dtype` if one is given."""
        return self._read([], Landing(get_framework(framework or self._reader._framework).build), dtype)

    def numpy(self) -> Tensor:
        """Reads the whole tensor as a NumPy array."""
        return self.load(framework="numpy")

    def torch(self) -> Tensor:
        """Reads the whole tensor as a torch tensor."""
        return self.load(framework="torch")

    def __getitem__(self, index: Any) -> Tensor:
        framework = get_framework(self._reader._framework)
        return self._get(index, framework, Landing(framework.build))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.load().__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU

    def __repr__(self) -> str:
        return f"<penstock.LazyTensor {self.name!r} {self.dtype} {list(self.shape)}>"

    def _get(self, index: Any, framework: Framework, landing: Landing) -> Any:
        basic = parse_index(index, self.shape)
        if BITS[self.dtype] < 8:
            self._check_packed(basic)
        tensor = self._read(basic.ranges, landing, None)
        if basic.is_plain:
            return tensor
        if isinstance(tensor, PackedTensor):
            raise UnsupportedError(f"{self.name}: of {self.dtype} only contiguous slices can be read")
        return framework.pick(tensor, basic)

    def _check_packed(self, basic: Basic) -> None:
        """Elements narrower than a byte can't be picked one by one."""
        if basic.steps and basic.steps[-1] != 1:
            raise UnsupportedError(f"{self.name}: the last dimension of {self.dtype} can only be sliced with step 1")

    def _read(self, ranges: list[tuple[int, int]], landing: Landing, dtype: Any) -> Any:
        options = self._reader.options(dtype=dtype)
        memories, rows = self._reader.core.load_slice(self.name, ranges, options, landing.allocator)
        return landing.build(memories, rows)[self.name]
