"""Makes casts.txt: what torch 2.13.0 (x86-64 with AVX2) makes of every floating type as every other one.

    python make_casts.py

A line is "FROM TO CRC": the CRC-32 of the converted bytes of a fixed input, which src/base/cast_test.cc makes again.
Eight- and sixteen-bit inputs are every code in order. F32 is every combination of the upper 20 bits, first with zeros
below, then with a hash below; F64 is each of these widened, with its last two bits changed by its place.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import torch

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}


def float_codes() -> np.ndarray:
    upper = np.arange(1 << 20, dtype=np.uint32) << np.uint32(12)
    lower = (np.arange(1 << 20, dtype=np.uint32) * np.uint32(0x9E3779B1)) >> np.uint32(20)
    return np.concatenate([upper, upper | lower])


def codes(width: int) -> np.ndarray:
    if width == 1:
        return np.arange(1 << 8, dtype=np.uint8)
    if width == 2:
        return np.arange(1 << 16, dtype=np.uint16)
    if width == 4:
        return float_codes()
    with np.errstate(invalid="ignore"):
        widened = float_codes().view(np.float32).astype(np.float64).view(np.uint64)
    return widened ^ (np.arange(len(widened), dtype=np.uint64) & np.uint64(3))


def main() -> None:
    torch.set_num_threads(1)
    lines = []
    for source_name, source in DTYPES.items():
        tensor = torch.from_numpy(codes(source.itemsize)).view(source)
        for target_name, target in DTYPES.items():
            converted = tensor.to(target).view(torch.uint8).numpy().tobytes()
            lines.append(f"{source_name} {target_name} {zlib.crc32(converted):08x}\n")
    (Path(__file__).parent / "casts.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
