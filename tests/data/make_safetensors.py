"""Makes the golden files in safetensors/ with the reference implementation (safetensors 0.8.0, torch 2.13.0).

    python make_safetensors.py

The C++ tests parse these files, encode the same tensors again and compare byte for byte. The files hold one key of
metadata at most, because the reference writes several of them in random order.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent / "safetensors"

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e8m0fnu,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.int16, torch.uint16, torch.float16, torch.bfloat16, torch.int32,
    torch.uint32, torch.float32, torch.complex64, torch.float64, torch.int64, torch.uint64, torch.float4_e2m1fn_x2,
]  # fmt: skip


def counting(dtype: torch.dtype, shape: tuple[int, ...], start: int) -> torch.Tensor:
    """A tensor whose bytes count up from `start` (modulo 251), or alternate for booleans."""
    count = torch.Size(shape).numel() * dtype.itemsize
    values = [(start + i) % (2 if dtype == torch.bool else 251) for i in range(count)]
    return torch.tensor(values, dtype=torch.uint8).view(dtype).reshape(shape)


def main() -> None:
    HERE.mkdir(exist_ok=True)
    names = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
    save_file(
        {n: counting(d, (2, 3), i) for i, (n, d) in enumerate(zip(names, DTYPES, strict=True))},
        HERE / "dtypes.safetensors",
    )

    mixed = {
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0),
        "empty.matrix": torch.empty(3, 0, 5, dtype=torch.int64),
        "vector": counting(torch.bfloat16, (7,), 0),
        "byte": counting(torch.uint8, (1,), 9),
        "five": counting(torch.int16, (1, 2, 1, 3, 1), 20),
    }
    save_file(mixed, HERE / "shapes.safetensors", metadata={"format": "pt"})

    odd = ["", " ", "a", "A", "é", "€", "𝄞", 'quote"', "back\\slash", "slash/"]
    odd += ["\n\r\t\b\f", "\x00\x01\x1f", "\x7f", "\u2028"]
    save_file({name: counting(torch.uint8, (1,), i) for i, name in enumerate(odd)}, HERE / "names.safetensors")

    save_file({}, HERE / "nothing.safetensors")
    save_file({"w": torch.zeros(2)}, HERE / "metadata.safetensors", metadata={'k"\n': "v\\ é \x02"})

    # No torch dtype has six bits: this one is written by the rules of the format.
    six = {
        "e3m2": {"dtype": "F6_E3M2", "shape": [2, 4], "data_offsets": [0, 6]},
        "e2m3": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [6, 9]},
    }
    text = json.dumps(six, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (HERE / "six_bits.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(range(9)))

    index = {
        "metadata": {"total_size": 28},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }
    (HERE / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")

    for path in HERE.iterdir():
        path.chmod(0o644)  # the reference writes 0600


if __name__ == "__main__":
    main()
