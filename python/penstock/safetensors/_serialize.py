"""TensorSpec, serialize, serialize_file and deserialize: tensors as addresses and bytes, with no framework."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any

from .._dtypes import BITS, TORCH_NAMES, numel
from .._frameworks import Source
from .._options import load_options, open_reader
from .._save import save
from ..errors import ArgumentError, ArgumentTypeError
from ._bytes import file_of_bytes, save_bytes
from ._reference import checked_tensors, one_path

# Frameworks' names of the types that the format has.
_DTYPES = {name: file_name for file_name, name in TORCH_NAMES.items() if file_name not in ("C32", "C128")}


class TensorSpec:
    """A contiguous tensor in memory, for `serialize` and `serialize_file`: the caller keeps that memory alive.

    dtype: a framework's name, such as "float32"; the attribute is the file's name for it, "F32".
    shape: of the elements; of the packed "float4_e2m1fn_x2" the last dimension is given in pairs, and the attribute
        counts elements.
    data_ptr: the address.
    data_len: bytes there.
    """

    __slots__ = ("_data_len", "_data_ptr", "_dtype", "_shape")

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        if not isinstance(dtype, str):
            raise ArgumentTypeError(f"dtype must be a string such as 'float32', not {type(dtype).__name__}")
        if dtype not in _DTYPES:
            raise ArgumentError(f"unknown dtype {dtype!r}; these are known: {', '.join(_DTYPES)}")
        self._dtype = _DTYPES[dtype]
        self._shape = _checked_shape(shape)
        if self._dtype == "F4" and self._shape:
            self._shape[-1] *= 2
        self._data_ptr = _checked_count("data_ptr", data_ptr)
        self._data_len = _checked_count("data_len", data_len)

    @property
    def dtype(self) -> str:
        """The file's name for the element type."""
        return self._dtype

    @property
    def shape(self) -> list[int]:
        """Elements along each dimension."""
        return list(self._shape)

    @property
    def data_ptr(self) -> int:
        """Where the bytes are."""
        return self._data_ptr

    @property
    def data_len(self) -> int:
        """How many there are."""
        return self._data_len

    def __repr__(self) -> str:
        fields = ((name, getattr(self, name)) for name in ("dtype", "shape", "data_ptr", "data_len"))
        return f"TensorSpec({', '.join(f'{name}={value!r}' for name, value in fields)})"


def serialize(tensor_dict: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a file that holds these tensors."""
    return save_bytes(_sources(tensor_dict, metadata), metadata, shared="duplicate")


def serialize_file(
    tensor_dict: Mapping[str, TensorSpec],
    filename: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Saves these tensors to a file."""
    sources = _sources(tensor_dict, metadata)
    save(sources, one_path(filename), format="safetensors", metadata=metadata, shared="duplicate", checksums=False)


def deserialize(bytes: bytes) -> list[tuple[str, dict[str, Any]]]:
    """The tensors of a file that is in memory: (name, {"dtype": ..., "shape": ..., "data": a bytearray})."""

    def build(memories: Sequence[Any], rows: Sequence[Any]) -> None:
        places.extend((memories[row[3]] if row[5] else b"", row) for row in rows)

    places: list[tuple[Any, Any]] = []
    with file_of_bytes(bytes) as path:
        open_reader(path).load(None, load_options(cache="buffered"), None, build)
    return [
        (name, {"dtype": dtype, "shape": list(shape), "data": bytearray(memoryview(memory)[offset : offset + nbytes])})
        for memory, (name, dtype, shape, _, offset, nbytes) in places
    ]


def _sources(tensor_dict: Any, metadata: Any) -> dict[str, Source]:
    if not isinstance(tensor_dict, Mapping):
        raise ArgumentTypeError(f"expected a dict of names to TensorSpec, not {type(tensor_dict).__name__}")
    return {name: _source(name, spec) for name, spec in checked_tensors(tensor_dict, metadata).items()}


def _source(name: str, spec: Any) -> Source:
    if not isinstance(spec, TensorSpec):
        raise ArgumentTypeError(f"{name}: expected a TensorSpec, not {type(spec).__name__}")
    shape = tuple(spec.shape)
    bits = numel(shape) * BITS[spec.dtype]
    if bits != spec.data_len * 8:
        raise ArgumentError(
            f"{name}: {spec.dtype} of shape {spec.shape} takes {bits / 8:g} bytes, and data_len is {spec.data_len}"
        )
    if spec.data_len and not spec.data_ptr:
        raise ArgumentError(f"{name}: data_ptr is 0, and {spec.data_len} bytes are to be read there")
    return Source(spec.dtype, shape, spec.data_ptr, None, spec)


def _checked_shape(shape: Any) -> list[int]:
    try:
        sizes = None if isinstance(shape, (str, bytes)) else [operator.index(size) for size in shape]
    except TypeError:
        sizes = None
    if sizes is None:
        raise ArgumentTypeError(f"shape must be a sequence of integers, not {shape!r}")
    return [_checked_count("shape", size) for size in sizes]


def _checked_count(what: str, value: Any) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"{what} must be an integer, not {type(value).__name__}") from None
    if not 0 <= count < 2**63:
        raise ArgumentError(f"{what}: {count} is not between 0 and 2**63")
    return count
