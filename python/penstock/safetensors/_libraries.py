"""Frameworks that penstock has no tensors of: their arrays are made of NumPy's, and NumPy's of theirs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from .._dtypes import dtype_name
from .._frameworks import PackedTensor
from .._load import load
from .._save import save
from ..errors import ArgumentError, ArgumentTypeError, LibraryError, UnsupportedError
from ._bytes import load_bytes, save_bytes
from ._reference import cache_for, checked_tensors, one_path


class Library:
    """What safetensors has a module for. Raises LibraryError where it can't be imported."""

    name: str
    module: str
    package: str  # what people install

    def __init__(self) -> None:
        try:
            self.library: Any = import_module(self.module)
        except ImportError as problem:
            raise LibraryError(f"{self.name} can't be imported ({problem}): pip install {self.package}") from problem

    def from_numpy(self, name: str, array: Any) -> Any:
        """The library's array, which may have fewer types."""
        if isinstance(array, PackedTensor):
            raise UnsupportedError(f"{name}: {self.name} has no {array.dtype}")
        try:
            return self._from_numpy(array)
        except (RuntimeError, TypeError, ValueError) as problem:
            reason = str(problem).strip().partition("\n")[0]
            raise UnsupportedError(f"{name}: {self.name} can't take {array.dtype} of a file: {reason}") from problem

    def to_numpy(self, name: str, value: Any) -> Any:
        """NumPy's array."""
        try:
            return self._to_numpy(value)
        except (AttributeError, RuntimeError, TypeError, ValueError) as problem:
            raise ArgumentError(f"{name}: expected an array of {self.name}, not {type(value).__name__}") from problem

    def _from_numpy(self, array: Any) -> Any:
        raise NotImplementedError

    def _to_numpy(self, value: Any) -> Any:
        raise NotImplementedError

    def load_file(self, filename: str | os.PathLike[str], backend: str) -> dict[str, Any]:
        arrays = load(one_path(filename), framework="numpy", cache=cache_for(backend))
        return {name: self.from_numpy(name, array) for name, array in arrays.items()}

    def load(self, data: bytes) -> dict[str, Any]:
        return {name: self.from_numpy(name, array) for name, array in load_bytes(data, "numpy").items()}

    def save_file(self, tensors: Mapping[str, Any], filename: str | os.PathLike[str], metadata: Any) -> None:
        arrays = self._arrays(tensors, metadata)
        save(arrays, one_path(filename), format="safetensors", metadata=metadata, shared="duplicate", checksums=False)

    def save(self, tensors: Mapping[str, Any], metadata: Any) -> bytes:
        return save_bytes(self._arrays(tensors, metadata), metadata, shared="duplicate")

    def _arrays(self, tensors: Mapping[str, Any], metadata: Any) -> dict[str, Any]:
        return {name: self.to_numpy(name, value) for name, value in checked_tensors(tensors, metadata).items()}


class Jax(Library):
    name = "jax"
    module = "jax"
    package = "jax"

    def _from_numpy(self, array: Any) -> Any:
        return self.library.device_put(array, may_alias=True)

    def _to_numpy(self, value: Any) -> Any:
        return self.library.device_get(value)


class TensorFlow(Library):
    name = "tensorflow"
    module = "tensorflow"
    package = "tensorflow"

    def _from_numpy(self, array: Any) -> Any:
        return self.library.convert_to_tensor(array)

    def _to_numpy(self, value: Any) -> Any:
        return value.numpy()


class Mlx(Library):
    name = "mlx"
    module = "mlx.core"
    package = "mlx"

    def _from_numpy(self, array: Any) -> Any:
        return self.library.array(array)

    def _to_numpy(self, value: Any) -> Any:
        from .._numpy import from_buffer

        if value.dtype == self.library.bfloat16:  # which no buffer can name
            return from_buffer(value.view(self.library.uint16), "BF16")
        return from_buffer(value, dtype_name(str(value.dtype).rpartition(".")[2]))


class Paddle(Library):
    name = "paddle"
    module = "paddle"
    package = "paddlepaddle"

    def _from_numpy(self, array: Any) -> Any:
        if array.dtype.name == "uint16":
            raise TypeError("it would be taken for bfloat16")
        return self.library.to_tensor(array.view("uint16") if array.dtype.name == "bfloat16" else array)

    def _to_numpy(self, value: Any) -> Any:
        from .._numpy import from_buffer

        return from_buffer(value.numpy(), dtype_name(str(value.dtype).rpartition(".")[2]))


# As penstock.open knows them: torch and NumPy have tensors of its own.
_OWN = {"pt": "torch", "torch": "torch", "pytorch": "torch", "np": "numpy", "numpy": "numpy"}
_LIBRARIES: dict[str, type[Library]] = {
    "flax": Jax,
    "jax": Jax,
    "tf": TensorFlow,
    "tensorflow": TensorFlow,
    "mlx": Mlx,
    "paddle": Paddle,
}


def find_framework(framework: str) -> tuple[str, Library | None]:
    """The framework of penstock's that tensors are made with, and what they are turned into then, if anything."""
    if not isinstance(framework, str):
        raise ArgumentTypeError(f"framework must be a string such as 'pt', not {type(framework).__name__}")
    if framework in _OWN:
        return _OWN[framework], None
    if framework in _LIBRARIES:
        return "numpy", _LIBRARIES[framework]()
    raise ArgumentError(f"framework {framework!r} is invalid; these are known: {', '.join([*_OWN, *_LIBRARIES])}")
