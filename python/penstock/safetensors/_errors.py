"""Errors that are also what the safetensors package raises in their place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ArgumentError, Error, UnsupportedError


class ModelError(ArgumentError, RuntimeError):
    """Tensors that share memory, or a file that does not fit its model."""


class LayoutError(UnsupportedError, ValueError):
    """A sparse tensor, or another that has no plain memory."""


@contextmanager
def as_reference() -> Iterator[None]:
    """For saves: raises errors of these classes."""
    try:
        yield
    except UnsupportedError as error:
        raise LayoutError(str(error)) from error
    except ArgumentError as error:
        if "share memory" not in str(error):
            raise
        raise ModelError(f"{error}; save_model stores what is shared once") from error


@contextmanager
def called(path: str, name: str) -> Iterator[None]:
    """Errors that name a path which the caller has never seen name this instead."""
    try:
        yield
    except Error as error:
        error.args = (str(error).replace(path, name),)
        raise
