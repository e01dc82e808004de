"""target_dtype: what the engine does not convert while it writes is converted here, before."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import torch

from .._dtypes import BITS, FLOATING
from .._torch import NAMES
from ..errors import ArgumentError, IoError, NoSpaceError

# Conversions that take more than this are kept in a file that has no name, not in memory.
MAX_MEMORY = 64 * 2**20
_ALIGNMENT = 64
EXTRA_STATE = "_extra_state"


def engine_converts(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether the engine converts while it writes: between floating types of whole bytes."""
    return all(name in FLOATING and BITS[name] >= 8 for name in (NAMES.get(source, "F4"), NAMES.get(target, "F4")))


def is_extra_state(name: str) -> bool:
    """Whether a name of a state dict is that of what a module adds to its parameters and buffers."""
    return name.rpartition(".")[2] == EXTRA_STATE


def converted(tensors: Mapping[str, Any], target: torch.dtype, directory: str) -> dict[str, Any]:
    """The tensors, with those that the engine can't convert to `target` converted: integers, booleans, complex numbers."""
    others = {name: tensor for name, tensor in tensors.items() if _needs_torch(name, tensor, target)}
    room = _Room(sum(_padded(tensor.numel() * target.itemsize) for tensor in others.values()), directory)
    return {**tensors, **{name: _convert(name, tensor, target, room) for name, tensor in others.items()}}


def _needs_torch(name: str, tensor: Any, target: torch.dtype) -> bool:
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"{name}: expected a torch tensor, not {type(tensor).__name__}")
    if is_extra_state(name):
        return False  # it is the module's own, often bytes
    return tensor.dtype != target and not engine_converts(tensor.dtype, target)


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class _Room:
    """Memory for converted tensors, handed out piece by piece."""

    def __init__(self, nbytes: int, directory: str) -> None:
        if nbytes <= MAX_MEMORY:
            self._bytes = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        else:
            self._bytes = _mapped(nbytes, directory)
        self._used = 0

    def take(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        nbytes = shape.numel() * dtype.itemsize
        piece = self._bytes[self._used : self._used + nbytes]
        self._used += _padded(nbytes)
        return piece.view(dtype).view(shape)


def _mapped(nbytes: int, directory: str) -> torch.Tensor:
    """Bytes of a file that goes away with them, so that the system may write them out when memory is short."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)  # A full disk is an error here, not a SIGBUS later.
            return torch.frombuffer(mmap.mmap(file.fileno(), nbytes), dtype=torch.uint8)
    except OSError as problem:
        kind = NoSpaceError if problem.errno in (28, 122) else IoError
        error = kind(f"{directory}: no room to convert {nbytes:,} bytes of tensors: {problem.strerror}")
        error.errno = problem.errno
        raise error from problem


def _convert(name: str, tensor: torch.Tensor, target: torch.dtype, room: _Room) -> torch.Tensor:
    try:
        return room.take(tensor.shape, target).copy_(tensor.detach())
    except RuntimeError as problem:  # NotImplementedError is one too
        raise ArgumentError(f"{name}: {_kind(tensor)} can't be converted to {target}") from problem


def _kind(tensor: torch.Tensor) -> str:
    where = "" if tensor.device.type == "cpu" else f" on the {tensor.device.type} device"
    layout = "" if tensor.layout is torch.strided else f"{str(tensor.layout).removeprefix('torch.')} "
    return f"a {layout}tensor of {tensor.dtype}{where}"
