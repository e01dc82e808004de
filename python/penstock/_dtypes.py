"""Element types, as the engine knows them: their names in files, in torch and in NumPy."""

from __future__ import annotations

from typing import Any

from . import _core
from .errors import ArgumentError

_ROWS = _core.dtypes()

# File name -> torch's name. ml_dtypes and NumPy use the same names, but for the packed F4.
TORCH_NAMES = {name: torch_name for name, torch_name, _, _ in _ROWS if torch_name}

# Width of an element in bits.
BITS = {name: bits for name, _, bits, _ in _ROWS}

# Types of one kind can stand in for each other: "floating", "complex", "bool" or "integer".
KINDS = {name: kind for name, _, _, kind in _ROWS}

FLOATING = frozenset(name for name, kind in KINDS.items() if kind == "floating")

_PYTHON_TYPES = (bool, int, float, complex)


def dtype_name(dtype: Any) -> str:
    """The file's name for a dtype given as a torch dtype, a NumPy dtype or type, or any name that people give one."""
    if isinstance(dtype, str):
        return _core.find_dtype(dtype if dtype.isascii() else ascii(dtype))
    if dtype in _PYTHON_TYPES:
        raise ArgumentError(f'unknown dtype {dtype!r}: how wide it is differs; name one, such as "float32"')
    return _core.find_dtype(str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype))


def numel(shape: tuple[int, ...]) -> int:
    """How many elements a shape has."""
    count = 1
    for size in shape:
        count *= size
    return count
