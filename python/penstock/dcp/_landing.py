"""Where what a plan wants goes: rows for the engine, which reads each set of files in one go."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.planner import ReadItem

from .. import _core
from .._dtypes import BITS, KINDS
from .._options import load_options
from .._parts import Part, part_shape
from .._torch.devices import streams
from .._torch.tensors import DTYPES, NAMES, copy_into, is_plain, is_reachable, mark_changed, pointer
from ..errors import FormatError
from ._metadata import Location

_SHORTEST_STRETCH = 512  # bytes: memory in shorter ones is filled from a copy

_Row = tuple[str, int, int, "str | None", Part, Sequence[int]]


class _Wanted(NamedTuple):
    """A tensor to be read, or a part of one."""

    row: _Row
    nbytes: int
    is_whole: bool


class Landings:
    """What is read, and where it goes. First everything is added, then it is loaded."""

    def __init__(self, directory: Path, verify: bool | str) -> None:
        self._directory = directory
        self._verify = verify
        self._items: list[tuple[ReadItem, Location, torch.Tensor]] = []
        self._pickles: list[tuple[Location, list[torch.Tensor]]] = []
        self._numbers: dict[Any, int] = {}
        self._infos: dict[str, Any] = {}

    def add(self, item: ReadItem, location: Location, target: torch.Tensor) -> None:
        """A chunk, or a part of one, and where it goes."""
        self._number(location)
        self._items.append((item, location, target))

    def add_pickle(self, location: Location) -> Callable[[], bytes]:
        """A pickle; what is returned gives it when all is loaded."""
        if location.raw:
            return lambda: self._read_raw(location)
        self._number(location)
        made: list[torch.Tensor] = []
        self._pickles.append((location, made))
        return lambda: _bytes_of(made[0])

    def load(self, tuning: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Loads all of it. Yields what was done."""
        if not self._numbers:
            return
        files = [(self._directory / file, stretch) for file, stretch in self._numbers]
        reader = _core.open_side_by_side(files)
        self._infos = {info[0]: info for info in reader.infos()}
        if any(stretch is not None for _, stretch in self._numbers):
            self._infos |= {info[0].partition("/")[0]: info for info in reader.infos()}
        wanted, copies, changed = self._plan()
        targets = [target for _, _, target in self._items if target.device.type != "cpu"]
        arguments = {"streams": streams(targets), **tuning}
        try:
            for rows, verify in self._rounds(wanted):
                yield reader.load_into(rows, load_options(verify=verify, **arguments), None)
        finally:
            for target in changed:
                mark_changed(target)
        for target, loaded in copies:
            copy_into(target, loaded)

    def _rounds(self, wanted: list[_Wanted]) -> Iterator[tuple[list[_Row], bool | str]]:
        """What is read in one go. Checksums are of whole chunks, so parts are read by themselves."""
        some = [each for each in wanted if each.nbytes > 0]
        if not self._verify:
            if some:
                yield [each.row for each in some], False
            return
        for whole in (True, False):
            rows = [each.row for each in some if each.is_whole is whole]
            if rows:
                yield rows, "if-any" if whole else False

    def _plan(self) -> tuple[list[_Wanted], list[tuple[torch.Tensor, torch.Tensor]], list[torch.Tensor]]:
        wanted: list[_Wanted] = []
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        changed: list[torch.Tensor] = []
        beside: dict[str, torch.Tensor] = {}  # whole chunks of which parts are wanted
        for item, location, target in self._items:
            info = self._info(location)
            part, is_whole = self._part(item, location, info, target)
            if not is_whole and self._verify == "all" and location.stretch is None:
                if info[0] not in beside:
                    beside[info[0]] = _empty(info[1], info[2])
                    wanted.append(_row(info, beside[info[0]], (), True))
                copies.append((target, _pick(beside[info[0]], item)))
            elif _lands_in_place(info[1], target):
                changed.append(target)
                wanted.append(_row(info, target, part, is_whole))
            else:
                loaded = _empty(info[1], part_shape(info[2], part))
                wanted.append(_row(info, loaded, part, is_whole))
                copies.append((target, loaded))
        for location, made in self._pickles:
            info = self._info(location)
            if info[1] != "U8" or len(info[2]) != 1:
                raise FormatError(f"{self._directory / location.file}: {location.name!r} is no pickle")
            made.append(torch.empty(info[2], dtype=torch.uint8))
            wanted.append(_row(info, made[0], (), True))
        return wanted, copies, changed

    def _part(self, item: ReadItem, location: Location, info: Any, target: torch.Tensor) -> tuple[Part, bool]:
        """The part of a chunk that is wanted; () for all of it, where no part is to be named."""
        shape = _shape_in_torch(info[1], info[2])
        begins, sizes = tuple(item.storage_offsets), tuple(item.lengths)
        where = f"{self._directory / location.file}: {item.storage_index.fqn!r}"
        if location.shape not in (None, shape):
            raise FormatError(f"{where}: has shape {list(shape)}, and {list(location.shape or ())} by the metadata")
        fits = len(begins) == len(sizes) == len(shape)
        if not fits or any(begin + size > whole for begin, size, whole in zip(begins, sizes, shape, strict=True)):
            raise FormatError(f"{where}: has shape {list(shape)}, where {list(sizes)} at {list(begins)} were expected")
        if tuple(target.shape) != sizes:
            raise FormatError(f"{where}: {list(sizes)} of it are wanted, for a tensor of shape {list(target.shape)}")
        if sizes == shape:
            return (), True
        ranges = [(begin, begin + size, 1) for begin, size in zip(begins, sizes, strict=True)]
        if BITS[info[1]] < 8:
            ranges[-1] = (ranges[-1][0] * 2, ranges[-1][1] * 2, 1)
        return [[each] for each in ranges], False

    def _number(self, location: Location) -> int:
        return self._numbers.setdefault((location.file, location.stretch), len(self._numbers))

    def _info(self, location: Location) -> Any:
        number = self._numbers[location.file, location.stretch]
        name = str(number) if location.name is None else f"{number}/{location.name}"
        info = self._infos.get(name)
        if info is None:
            raise FormatError(f"{self._directory / location.file}: has no tensor {location.name!r}")
        return info

    def _read_raw(self, location: Location) -> bytes:
        path = self._directory / location.file
        offset, length = location.stretch or (0, 0)
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(length)
        if len(data) != length:
            raise FormatError(f"{path}: {length} bytes at {offset} are past its end")
        return data


def _row(info: Any, target: torch.Tensor, part: Part, is_whole: bool) -> _Wanted:
    """`target` is as large as the part."""
    own = NAMES[target.dtype]
    strides: tuple[int, ...] = ()
    nbytes = target.nbytes
    if not target.is_contiguous() and nbytes > 0:
        width = target.element_size()
        strides = tuple(stride * width for stride in target.stride())
        nbytes = width + sum((size - 1) * stride for size, stride in zip(target.shape, strides, strict=True))
    row = (info[0], pointer(target), nbytes, None if own == info[1] else own, part, strides)
    return _Wanted(row, target.nbytes, is_whole)


def _lands_in_place(dtype: str, target: torch.Tensor) -> bool:
    """Whether the engine can put the bytes where they belong. It converts floating types."""
    own = NAMES.get(target.dtype)
    if own is None or not is_plain(target) or target.is_neg() or target.is_conj() or not is_reachable(target):
        return False
    if own != dtype and not (KINDS[own] == KINDS[dtype] == "floating" and min(BITS[own], BITS[dtype]) >= 8):
        return False
    if target.is_contiguous():
        return True
    if BITS[own] < 8 or any(
        size > 1 and stride <= 0 for size, stride in zip(target.shape, target.stride(), strict=True)
    ):
        return False
    return _stretch(target) * target.element_size() >= _SHORTEST_STRETCH


def _stretch(target: torch.Tensor) -> int:
    """How many elements follow each other in memory."""
    run = 1
    for size, stride in zip(reversed(target.shape), reversed(target.stride()), strict=True):
        if size > 1 and stride != run:
            break
        run *= size
    return run


def _shape_in_torch(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """torch counts elements of four bits in pairs."""
    return (*shape[:-1], shape[-1] // 2) if BITS[dtype] < 8 and shape else shape


def _empty(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(_shape_in_torch(dtype, shape), dtype=DTYPES[dtype])


def _pick(chunk: torch.Tensor, item: ReadItem) -> torch.Tensor:
    for dimension, (begin, size) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        chunk = chunk.narrow(dimension, begin, size)
    return chunk


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel()) if tensor.numel() > 0 else b""
