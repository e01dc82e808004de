"""Makes the golden seals here, from docs/formats/seal.md and the golden safetensors files alone: no penstock.

python tests/data/seal/make.py
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

HERE = Path(__file__).parent
FILES = HERE.parent / "safetensors"
BLOCK_SIZE = 512


def crc32c(data: bytes) -> str:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return f"{crc ^ 0xFFFFFFFF:08x}"


def tensor_line(name: str, entry: dict, data: bytes, start: int) -> str:
    begin, end = (start + offset for offset in entry["data_offsets"])
    fields = {
        "name": name,
        "dtype": entry["dtype"],
        "shape": entry["shape"],
        "offset": begin,
        "nbytes": end - begin,
        "crc32c": crc32c(data[begin:end]),
    }
    return "    " + json.dumps(fields, ensure_ascii=False)


def seal(data: bytes, sha256: bool) -> str:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    blocks = "".join(crc32c(data[at : at + BLOCK_SIZE]) for at in range(0, len(data), BLOCK_SIZE))
    names = sorted(header, key=lambda name: name.encode())
    lines = [tensor_line(name, header[name], data, 8 + length) for name in names]
    text = '{\n  "penstock.seal": 1,\n' + f'  "size": {len(data)},\n'
    if sha256:
        text += f'  "sha256": "{hashlib.sha256(data).hexdigest()}",\n'
    text += f'  "block_size": {BLOCK_SIZE},\n  "blocks": "{blocks}",\n'
    text += '  "tensors": [\n' + ",\n".join(lines) + "\n  ],\n" if lines else '  "tensors": [],\n'
    return text + f'  "crc32c": "{crc32c(text.encode())}"\n}}\n'


def main() -> None:
    for name, sha256 in (("shapes", False), ("dtypes", True), ("nothing", False)):
        text = seal((FILES / f"{name}.safetensors").read_bytes(), sha256)
        (HERE / f"{name}.safetensors.seal.json").write_text(text, newline="")


if __name__ == "__main__":
    main()
