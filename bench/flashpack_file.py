"""The raced files as FlashPack, written and read back with the standard library alone.

The same bytes that flashpack itself writes for these tensors: the largest first, each on a multiple of 128 bytes, in
one block; then the index, its length and a magic word.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import model

MAGIC = b"FLASHPK\0"
ALIGNMENT = 128
TORCH_NAMES = {"BF16": "bfloat16", "F32": "float32"}


def make_input(source: str, target: str) -> None:
    """TARGET from the safetensors file SOURCE, whole or not at all."""
    temporary = target + ".part"
    entries, base = model.read_header(Path(source))
    ordered = sorted(entries.items(), key=lambda item: -math.prod(item[1]["shape"]))
    index = []
    with open(source, "rb") as data, open(temporary, "wb") as out:
        dtype = str(ordered[0][1]["dtype"])
        width = model.ELEMENT_SIZE[dtype]
        for name, entry in ordered:
            assert entry["dtype"] == dtype, "one block holds one type"
            out.write(b"\0" * (-out.tell() % ALIGNMENT))
            begin, end = entry["data_offsets"]
            index.append(
                {"name": name, "shape": entry["shape"], "offset": out.tell() // width, "length": (end - begin) // width}
            )
            data.seek(base + begin)
            out.write(data.read(end - begin))
        footer = {
            "format": "flashpack_v3",
            "target_dtype": TORCH_NAMES[dtype],
            "align_bytes": ALIGNMENT,
            "total_elems": out.tell() // width,
            "index": index,
        }
        text = json.dumps(footer, separators=(",", ":"), ensure_ascii=False).encode()
        out.write(text + struct.pack("<Q", len(text)) + MAGIC)
    os.replace(temporary, target)


def read_footer(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        file.seek(-16, os.SEEK_END)
        length, magic = struct.unpack("<Q8s", file.read(16))
        if magic != MAGIC:
            raise ValueError(f"{path} is not FlashPack")
        file.seek(-16 - length, os.SEEK_END)
        footer: dict[str, Any] = json.loads(file.read(length))
    return footer


def checksum_file(path: Path) -> int:
    """As model.checksum_file: over all tensors' bytes, by name."""
    footer = read_footer(path)
    width = {name: model.ELEMENT_SIZE[short] for short, name in TORCH_NAMES.items()}[footer["target_dtype"]]
    checksum = 0
    with path.open("rb") as file:
        for entry in sorted(footer["index"], key=lambda entry: str(entry["name"])):
            file.seek(width * entry["offset"])
            checksum = zlib.crc32(file.read(width * entry["length"]), checksum)
    return checksum


FLASHPACK_INPUT: dict[str, Any] = {"input_suffix": ".flashpack", "make_input": make_input}
FLASHPACK_OUTPUT: dict[str, Any] = {"output_suffix": ".flashpack"}
