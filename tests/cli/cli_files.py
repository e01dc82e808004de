"""safetensors files made by hand, good and bad."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

WIDTHS = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1, "I8": 1, "BOOL": 1}

# name: (dtype, shape, data)
Tensors = dict[str, tuple[str, list[int], bytes]]


def sample_tensors() -> Tensors:
    floats = struct.pack("<6f", *(i / 2 for i in range(6)))
    return {
        "embedding.weight": ("F32", [2, 3], floats),
        "layers.0.bias": ("F32", [4], struct.pack("<4f", 1, 2, 3, 4)),
        "layers.0.weight": ("BF16", [2, 2], struct.pack("<4H", 0x3F80, 0x4000, 0x4040, 0x4080)),
        "step": ("I64", [], struct.pack("<q", 7)),
    }


def header_and_data(tensors: Tensors, metadata: dict[str, str] | None) -> tuple[dict[str, Any], bytes]:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        assert len(content) == math.prod(shape) * WIDTHS[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    return header, data


def encode(header: dict[str, Any] | bytes, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def write_file(path: Path, tensors: Tensors | None = None, metadata: dict[str, str] | None = None) -> Path:
    header, data = header_and_data(sample_tensors() if tensors is None else tensors, metadata)
    path.write_bytes(encode(header, data))
    return path


def write_large(path: Path, nbytes: int) -> Path:
    """A file of one large tensor whose data is a hole: quick to make, long to convert."""
    header = encode({"large": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}}, b"")
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + nbytes)
    return path


def write_shards(directory: Path, with_index: bool = True) -> Path:
    directory.mkdir(exist_ok=True)
    items = list(sample_tensors().items())
    weight_map = {}
    for i, part in enumerate((items[:2], items[2:])):
        name = f"model-{i + 1:05}-of-00002.safetensors"
        write_file(directory / name, dict(part))
        weight_map.update({tensor: name for tensor, _ in part})
    if with_index:
        index = {"metadata": {"total_size": 100}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def read_file(path: Path) -> tuple[Tensors, dict[str, str]]:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    data = raw[8 + length :]
    tensors = {}
    for name, record in header.items():
        begin, end = record["data_offsets"]
        tensors[name] = (record["dtype"], record["shape"], data[begin:end])
    return tensors, metadata


def names_in(directory: Path) -> list[str]:
    """Everything in a directory, hidden files too: for checks that nothing was left behind."""
    return sorted(entry.name for entry in directory.iterdir())
