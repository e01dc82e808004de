"""Makes the golden files beside it with the reference implementation (flashpack 0.4.5, torch 2.13.0).

    python make.py

Tests import the table below, pack the same tensors with the same arguments and compare byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex32, torch.complex64,
    torch.complex128, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]  # fmt: skip

State = dict[str, torch.Tensor]
Case = tuple[Callable[[], State], dict[str, Any]]


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def counting(dtype: torch.dtype, shape: tuple[int, ...], start: int = 0) -> torch.Tensor:
    """A tensor whose bytes count up from `start` (modulo 251), or alternate for booleans."""
    count = torch.Size(shape).numel() * dtype.itemsize
    values = [(start + i) % (2 if dtype == torch.bool else 251) for i in range(count)]
    return torch.tensor(values, dtype=torch.uint8).view(dtype).reshape(shape)


def every_type() -> State:
    return {short(dtype): counting(dtype, (2, 3), i) for i, dtype in enumerate(DTYPES)}


def one_type(dtype: torch.dtype) -> State:
    return {"bias": counting(dtype, (3,), 1), "weight": counting(dtype, (5, 7), 2), "scale": counting(dtype, (), 3)}


def mixed() -> State:
    """Types of every width, sizes that are no multiples of anything."""
    return {
        "a.weight": counting(torch.float32, (11, 13)),
        "a.bias": counting(torch.bfloat16, (17,), 1),
        "b.weight": counting(torch.bfloat16, (3, 5, 7), 2),
        "b.steps": counting(torch.int64, (), 3),
        "c": counting(torch.uint8, (19,), 4),
        "d": counting(torch.complex128, (2,), 5),
        "e": counting(torch.float32, (1,), 6),
        "f": counting(torch.float8_e5m2, (257,), 7),
    }


def shapes() -> State:
    return {
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0),
        "vector": counting(torch.float32, (7,)),
        "empty.matrix": torch.empty(3, 0, 5),
        "ones": counting(torch.float32, (1, 1, 1), 9),
        "five": counting(torch.float32, (1, 2, 1, 3, 1), 20),
    }


def empty_blocks() -> State:
    """Of two types there are only empty tensors."""
    return {
        "ints": torch.empty(0, dtype=torch.int64),
        "vector": counting(torch.float16, (3,)),
        "halves": torch.empty(2, 0, dtype=torch.float16),
        "bytes": torch.empty(0, 0, dtype=torch.uint8),
    }


def odd_names() -> State:
    odd = ["", " ", "a", "A", "é", "€", "𝄞", 'quote"', "back\\slash", "slash/", "\n\r\t\b\f", "\x00\x01\x1f", "\x7f"]
    odd += ["\x80\x9f", "\u2028\u2029", "\ufeff", "\ufffe", "a" * 300]
    return {name: counting(torch.uint8, (1,), i) for i, name in enumerate(odd)}


def equal_sizes() -> State:
    """Where sizes are equal the given order counts."""
    names = ["z", "y", "m", "a", "b"]
    return {name: counting(torch.float32, (3, 1 + i % 2), i) for i, name in enumerate(names)}


def numbers() -> State:
    """Values that every type can be asked to hold."""
    return {
        "floats": torch.tensor([0.0, -0.0, 1.5, -2.75, 100.0, 0.1]),
        "doubles": torch.tensor([[3.0, 65504.0], [1e-3, -1.0]], dtype=torch.float64),
        "halves": torch.tensor([1.0, 2.5, 0.333], dtype=torch.bfloat16),
        "integers": torch.tensor([[0, 1, 2], [120, 7, 100]]),
        "bytes": torch.tensor([0, 1, 127], dtype=torch.uint8),
        "flags": torch.tensor([True, False, True, True]),
        "step": torch.tensor(12),
        "nothing": torch.empty(0, dtype=torch.int32),
    }


TARGETS = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
    torch.int8, torch.bool, torch.complex64,
]  # fmt: skip

CASES: dict[str, Case] = {
    "every_type": (every_type, {}),
    "shapes": (shapes, {}),
    "empty_blocks": (empty_blocks, {}),
    "names": (odd_names, {}),
    "equal_sizes": (equal_sizes, {}),
    "name_order": (mixed, {"name_order": ["c", "b.weight", "not there", "e", "a.bias", "a.weight"]}),
    "name_order_dense": (shapes, {"name_order": ["five", "empty", "scalar"], "align_bytes": 0}),
    **{f"one_type_{short(dtype)}": ((lambda dtype=dtype: one_type(dtype)), {}) for dtype in DTYPES},
    **{f"align_{size}": (mixed, {"align_bytes": size}) for size in (0, 1, 2, 3, 7, 128, 512, 4096)},
    **{f"align_{size}_one_type": (shapes, {"align_bytes": size}) for size in (0, 1, 3, 512)},
    **{f"target_{short(dtype)}": (numbers, {"target_dtype": dtype}) for dtype in TARGETS},
}

# Files that the reference's converter made of those in ../safetensors.
CONVERTED = {"converted_shapes": ("shapes.safetensors", None), "converted_names": ("names.safetensors", "float32")}


def main() -> None:
    from flashpack import pack_to_file
    from flashpack.commands import convert_to_flashpack_from_state_dict_file

    for name, (make_state, arguments) in CASES.items():
        path = HERE / f"{name}.flashpack"
        pack_to_file(make_state(), str(path), **{"target_dtype": None, **arguments})
        path.chmod(0o644)  # the reference writes 0600
    for name, (source, dtype) in CONVERTED.items():
        path = HERE / f"{name}.flashpack"
        convert_to_flashpack_from_state_dict_file(str(HERE.parent / "safetensors" / source), str(path), dtype)
        path.chmod(0o644)


if __name__ == "__main__":
    main()
