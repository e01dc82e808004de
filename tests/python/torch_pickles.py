"""Pickles put together opcode by opcode, and the torch files around them: what no pickler would write."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

ORDERED_DICT = b"ccollections\nOrderedDict\n)R"


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def number(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def group(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def numbers(*values: int) -> bytes:
    return group(*map(number, values))


def storage(kind: str, key: str, count: int, *, legacy: bool = False) -> bytes:
    parts = [text("storage"), name("torch", kind), text(key), text("cpu"), number(count)]
    return group(*parts, *([b"N"] if legacy else [])) + b"Q"


def tensor(of: bytes, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *more: bytes) -> bytes:
    arguments = group(of, number(offset), numbers(*shape), numbers(*strides), b"\x89", ORDERED_DICT, *more)
    function = "_rebuild_tensor_v3" if more else "_rebuild_tensor_v2"
    return name("torch._utils", function) + arguments + b"R"


def whole(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def write_zip(path: Path, body: bytes, *storages: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("m/data.pkl", whole(body))
        archive.writestr("m/byteorder", b"little")
        for key, data in enumerate(storages):
            archive.writestr(f"m/data/{key}", data)
        archive.writestr("m/version", b"3\n")


LEGACY_START = (
    b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
    + whole(b"M\xe9\x03")
    + whole(b"}" + text("little_endian") + b"\x88s")
)


def write_legacy(path: Path, body: bytes, keys: list[str], data: bytes) -> None:
    listed = whole(b"](" + b"".join(map(text, keys)) + b"e")
    path.write_bytes(LEGACY_START + whole(body) + listed + data)
