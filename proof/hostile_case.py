"""A hostile file, and what several families of them are made with."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "python"))

import torch_pickles as pickles  # noqa: F401  the opcodes that torch's files are made of


class Case(NamedTuple):
    """A file or directory. `sound`: it may be read, for it is only strange; all others must be refused."""

    name: str
    path: Path
    sound: bool = False


# Makes the files of a family in a directory of its own. Beside that there is ../outside, which nobody may look into.
Family = Callable[[Path], Iterator[Case]]

GOOD_RECORD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def safetensors_bytes(header: Any, data: bytes = bytes(8)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


GOOD_SAFETENSORS = safetensors_bytes({"x": GOOD_RECORD})


def flashpack_bytes(footer: Any, payload: bytes = bytes(8)) -> bytes:
    text = footer if isinstance(footer, bytes) else json.dumps(footer).encode()
    return payload + text + struct.pack("<Q", len(text)) + b"FLASHPK\0"
