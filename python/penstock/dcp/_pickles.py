"""Values that are no tensors: pickles, which are read as data."""

from __future__ import annotations

import io
import os
import pickle
from typing import Any

import torch

from .. import _core
from .._options import load_options
from .._torch.trees import load_tree
from ..errors import Error, FormatError, UnsupportedFormatError


def checked_pickle(data: bytes, what: str) -> io.BytesIO:
    """A pickle of the same value that is made here, for planners, which execute what they are given.

    `data` is read as data by the engine, or else by torch's weights-only unpickler with the classes that the caller has
    allowed (`torch.serialization.add_safe_globals`). Raises UnsupportedFormatError that names what is more than data.
    """
    buffer = io.BytesIO()
    torch.save(_read(data, what), buffer)
    buffer.seek(0)
    return buffer


def _read(data: bytes, what: str) -> Any:
    try:
        return _read_as_data(data)
    except Error as problem:
        if not torch.serialization.get_safe_globals():
            kind = UnsupportedFormatError if isinstance(problem, UnsupportedFormatError) else FormatError
            reason = str(problem).partition(": ")[2]
            raise kind(f"{what}: {reason}; torch.serialization.add_safe_globals() allows classes") from problem
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as problem:  # as many kinds as a pickle can be wrong in
        reason = " ".join(str(problem).split())
        raise UnsupportedFormatError(f"{what}: {reason}") from problem


def _read_as_data(data: bytes, opaque: str = "refuse") -> Any:
    """By the engine, which reads files: here one in memory."""
    fd = os.memfd_create("pickle")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        checkpoint = _core.TorchCheckpoint(f"/proc/self/fd/{fd}", opaque)
        return load_tree(checkpoint, load_options(), None)[0]
    finally:
        os.close(fd)


# What torch's legacy format has before the pickle of an object, and behind it where there are no storages.
_BEFORE = b"".join(
    pickle.dumps(each, 2)
    for each in (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}})
)
_BEHIND = pickle.dumps([], 2)


def read_bare_pickle(data: bytes) -> Any:
    """A pickle by itself as data, with `Opaque` in place of objects. Raises FormatError without a path."""
    try:
        return _read_as_data(_BEFORE + data + _BEHIND, "keep")
    except FormatError as problem:
        kind = UnsupportedFormatError if isinstance(problem, UnsupportedFormatError) else FormatError
        raise kind(str(problem).partition(": ")[2]) from problem


def given_pickle(data: bytes, what: str) -> io.BytesIO:
    """The pickle as it is, for those who trust it."""
    return io.BytesIO(data)
