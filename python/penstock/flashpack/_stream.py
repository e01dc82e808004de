"""Packing tensors that are on another device: they come over in pieces, and never all at once.

The engine writes from memory that is all there; this writes the same bytes from front to back.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .. import _core
from .._dtypes import BITS
from .._options import checked_text, io_options, path_text
from .._torch import NAMES
from ..errors import ArgumentError, CancelledError
from ._cast import engine_converts, is_extra_state
from .constants import FILE_FORMAT_V3, FILE_FORMAT_V4, MAGIC, U64LE
from .utils import dtype_to_string

if TYPE_CHECKING:
    from .._options import Path
    from .._progress import Callback

# What is copied at a time.
PIECE_BYTES = 32 * 2**20

_LARGE_BYTES = 256 * 2**10
_LARGE_ALIGNMENT = 4096
_BYTES = 8


def needs_stream(tensors: Mapping[str, Any]) -> bool:
    """Whether any of them is on another device. What no file holds is left to the engine, which says why."""
    values = list(tensors.values())
    return all(map(_is_plain, values)) and any(value.device.type != "cpu" for value in values)


def _is_plain(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_meta:
        return False
    return not value.is_nested and not value.is_quantized and BITS.get(NAMES.get(value.dtype, "F4"), 0) >= _BYTES


class Layout(NamedTuple):
    """Where tensors go."""

    align_bytes: int
    align_large: bool
    keep_order: bool


class _Place(NamedTuple):
    name: str
    tensor: torch.Tensor
    begin: int  # in elements of its block


class _Block:
    """The tensors of one type, one after the other."""

    def __init__(self, dtype: torch.dtype, cursor: int, layout: Layout) -> None:
        width = dtype.itemsize
        alignment = math.lcm(layout.align_bytes, width) if layout.align_bytes else width
        self.dtype = dtype
        self.begin = _round_up(cursor, math.lcm(alignment, _LARGE_ALIGNMENT) if layout.align_large else alignment)
        self.elements = 0
        self.places: list[_Place] = []
        self._step = layout.align_bytes // math.gcd(layout.align_bytes, width) if layout.align_bytes else 1
        self._large_step = math.lcm(self._step, _LARGE_ALIGNMENT // width) if layout.align_large else self._step

    def add(self, name: str, tensor: torch.Tensor) -> None:
        is_large = tensor.numel() * self.dtype.itemsize >= _LARGE_BYTES
        begin = _round_up(self.elements, self._large_step if is_large else self._step)
        self.places.append(_Place(name, tensor, begin))
        self.elements = begin + tensor.numel()

    @property
    def end(self) -> int:
        return self.begin + self.elements * self.dtype.itemsize


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def pack_stream(
    tensors: Mapping[str, torch.Tensor],
    path: Path,
    target_dtype: torch.dtype | None,
    layout: Layout,
    callback: Callback | None,
) -> dict[str, float]:
    """Writes the file that the engine would. Returns the seconds of each phase."""
    started = time.perf_counter()
    blocks = _lay_out(tensors, target_dtype, layout)
    footer = _footer(blocks, layout)
    laid_out = time.perf_counter()
    file = _core.StreamFile(
        path_text(path), durable=True, in_place=False, overlap=True, max_staging=0, method="auto", io=io_options()
    )
    try:
        file.reserve(blocks[-1].end + len(footer))
        _write_payload(file, blocks, callback)
        file.write(footer)
        written = time.perf_counter()
        file.finish()
    except BaseException:
        file.abandon()
        raise
    return {"layout": laid_out - started, "write": written - laid_out, "finish": time.perf_counter() - written}


def _lay_out(tensors: Mapping[str, torch.Tensor], target: torch.dtype | None, layout: Layout) -> list[_Block]:
    names = list(tensors) if layout.keep_order else sorted(tensors, key=lambda name: -tensors[name].numel())
    groups: dict[torch.dtype, list[str]] = {}
    for name in names:
        groups.setdefault(_stored_dtype(checked_text("the name", name), tensors[name].dtype, target), []).append(name)
    blocks: list[_Block] = []
    for dtype, members in groups.items():
        blocks.append(_Block(dtype, blocks[-1].end if blocks else 0, layout))
        for name in members:
            blocks[-1].add(name, tensors[name])
    if blocks[-1].end == 0:
        raise ArgumentError("there is nothing to store: a FlashPack file needs at least one element")
    return blocks


def _stored_dtype(name: str, dtype: torch.dtype, target: torch.dtype | None) -> torch.dtype:
    if target is None or (is_extra_state(name) and not engine_converts(dtype, target)):
        return dtype
    return target


def _footer(blocks: list[_Block], layout: Layout) -> bytes:
    is_single = len(blocks) == 1
    metadata: dict[str, Any] = {"format": FILE_FORMAT_V3 if is_single else FILE_FORMAT_V4}
    if is_single:
        metadata["target_dtype"] = dtype_to_string(blocks[0].dtype)
    metadata["align_bytes"] = layout.align_bytes
    if not is_single:
        metadata["total_payload_bytes"] = blocks[-1].end
    metadata["total_elems"] = sum(block.elements for block in blocks)
    if not is_single:
        metadata["macroblocks"] = [_describe(block) for block in blocks]
    metadata["index"] = [
        _index_entry(place, None if is_single else number)
        for number, block in enumerate(blocks)
        for place in block.places
    ]
    text = json.dumps(metadata, ensure_ascii=False, separators=(",", ":")).encode()
    return text + U64LE.pack(len(text)) + MAGIC


def _describe(block: _Block) -> dict[str, Any]:
    return {
        "dtype": dtype_to_string(block.dtype),
        "offset_bytes": block.begin,
        "length_bytes": block.end - block.begin,
        "length_elems": block.elements,
    }


def _index_entry(place: _Place, macroblock: int | None) -> dict[str, Any]:
    count = place.tensor.numel()
    entry = {"name": place.name, "shape": list(place.tensor.shape), "offset": place.begin, "length": count}
    return entry if macroblock is None else {**entry, "macroblock": macroblock}


def _write_payload(file: _core.StreamFile, blocks: list[_Block], callback: Callback | None) -> None:
    cursor, total = 0, blocks[-1].end
    for block in blocks:
        for place in block.places:
            begin = block.begin + place.begin * block.dtype.itemsize
            file.write(bytes(begin - cursor))
            cursor = begin
            for piece in _pieces(place, block.dtype):
                file.write_memory([(piece.data_ptr(), piece.numel() * piece.element_size())])
                cursor += piece.numel() * piece.element_size()
                if callback is not None and callback(cursor, total) is False:
                    raise CancelledError("the save was stopped by its callback")
                del piece  # before the next one is made


def _pieces(place: _Place, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """A tensor's elements in the host's memory, some at a time."""
    tensor = place.tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    step = max(PIECE_BYTES // max(tensor.element_size(), dtype.itemsize), 1)
    for begin in range(0, tensor.numel(), step):
        piece = tensor.narrow(0, begin, min(step, tensor.numel() - begin))
        yield _convert(place.name, piece, dtype).cpu()


def _convert(name: str, piece: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if piece.dtype == dtype:
        return piece
    try:
        return piece.to(dtype)
    except RuntimeError as problem:  # NotImplementedError is one too
        reason = str(problem).split("\n")[0]
        raise ArgumentError(f"{name}: can't be converted from {piece.dtype} to {dtype}: {reason}") from problem
