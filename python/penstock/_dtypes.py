"""Element types: their names in files, in torch and in NumPy."""

from __future__ import annotations

from typing import Any

from .errors import ArgumentError

# File name -> torch's name. ml_dtypes and NumPy use the same names, but for the packed F4.
TORCH_NAMES = {
    "BOOL": "bool",
    "F4": "float4_e2m1fn_x2",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
    "C32": "complex32",
    "C128": "complex128",
}

# Width of an element in bits.
BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32", "C32"), 32),
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 64),
    "C128": 128,
}

# In NumPy these come from the ml_dtypes package.
ML_DTYPES = frozenset({"BF16", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})

FLOATING = frozenset({"F16", "BF16", "F32", "F64"} | {name for name in BITS if name.startswith(("F8", "F6", "F4"))})

_FILE_NAMES = {name: file_name for file_name, name in TORCH_NAMES.items()} | {name: name for name in BITS}


def dtype_name(dtype: Any) -> str:
    """The file's name for a dtype given as a torch dtype, a NumPy dtype or type, or a name of either kind."""
    if isinstance(dtype, str):
        name = dtype
    else:
        name = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype)
    name = name.removeprefix("torch.")
    file_name = _FILE_NAMES.get(name) or _FILE_NAMES.get(name.upper())
    if file_name is None:
        raise ArgumentError(f"unknown dtype {dtype!r}")
    return file_name


def numel(shape: tuple[int, ...]) -> int:
    """How many elements a shape has."""
    count = 1
    for size in shape:
        count *= size
    return count


def kind(dtype: str) -> str:
    """Types of one kind can stand in for each other: "floating", "complex", "bool" or "integer"."""
    if dtype in FLOATING:
        return "floating"
    return {"C32": "complex", "C64": "complex", "C128": "complex", "BOOL": "bool"}.get(dtype, "integer")
