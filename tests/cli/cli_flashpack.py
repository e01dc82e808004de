"""FlashPack files made and read by hand."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

from cli_files import Tensors, sample_tensors

MAGIC = b"FLASHPK\0"
TORCH_NAMES = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "U8": "uint8",
    "C128": "complex128",
}
WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "uint8": 1, "complex128": 16}


def encode(footer: dict[str, Any] | bytes, payload: bytes) -> bytes:
    text = footer if isinstance(footer, bytes) else json.dumps(footer, separators=(",", ":")).encode()
    return payload + text + struct.pack("<Q", len(text)) + MAGIC


def footer_and_payload(tensors: Tensors) -> tuple[dict[str, Any], bytes]:
    """A version 4, one block per dtype, nothing aligned to more than its elements."""
    payload = b""
    blocks: list[dict[str, Any]] = []
    index: list[dict[str, Any]] = []
    for dtype in dict.fromkeys(dtype for dtype, _, _ in tensors.values()):
        name, width = TORCH_NAMES[dtype], WIDTHS[TORCH_NAMES[dtype]]
        payload += b"\0" * (-len(payload) % width)
        start = len(payload)
        for tensor, (own, shape, data) in tensors.items():
            if own != dtype:
                continue
            offset = (len(payload) - start) // width
            index.append(
                {
                    "name": tensor,
                    "shape": shape,
                    "offset": offset,
                    "length": math.prod(shape),
                    "macroblock": len(blocks),
                }
            )
            payload += data
        length = len(payload) - start
        blocks.append({"dtype": name, "offset_bytes": start, "length_bytes": length, "length_elems": length // width})
    return {"format": "flashpack_v4", "align_bytes": 0, "macroblocks": blocks, "index": index}, payload


def write_file(path: Path, tensors: Tensors | None = None, metadata: dict[str, str] | None = None) -> Path:
    footer, payload = footer_and_payload(sample_tensors() if tensors is None else tensors)
    if metadata is not None:
        footer["metadata"] = metadata
    path.write_bytes(encode(footer, payload))
    return path


def read_footer(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    assert raw.endswith(MAGIC)
    (length,) = struct.unpack("<Q", raw[-16:-8])
    footer: dict[str, Any] = json.loads(raw[-16 - length : -16])
    return footer


def read_file(path: Path) -> tuple[Tensors, dict[str, str]]:
    raw = path.read_bytes()
    footer = read_footer(path)
    blocks = footer.get("macroblocks") or [{"dtype": footer["target_dtype"], "offset_bytes": 0}]
    names = {torch_name: name for name, torch_name in TORCH_NAMES.items()}
    tensors = {}
    for record in footer["index"]:
        block = blocks[record.get("macroblock", 0)]
        width = WIDTHS[block["dtype"]]
        begin = block["offset_bytes"] + record["offset"] * width
        data = raw[begin : begin + record["length"] * width]
        tensors[record["name"]] = (names[block["dtype"]], record["shape"], data)
    return tensors, footer.get("metadata", {})
