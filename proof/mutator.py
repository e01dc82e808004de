"""Files that are wrong in one way or a few: bytes, JSON headers and zip records are changed at random, the same for the
same seed."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

NUMBERS = [0, 1, 2, 3, 4, 7, 8, 16, 127, 128, 255, 256, 65535, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64]
WORDS = [
    "",
    "a",
    "dtype",
    "shape",
    "data_offsets",
    "offset",
    "U8",
    "F32",
    "BF16",
    "float32",
    "uint8",
    "\u00e9",
    "__metadata__",
]


class Raw(str):
    """JSON text that stands as it is."""

    __slots__ = ()


def pairs_of(text: str) -> Any:
    """JSON with its objects as lists of pairs, so that a key can come twice."""
    return json.loads(text, object_pairs_hook=lambda pairs: ("object", pairs))


def text_of(value: Any, rng: random.Random) -> str:
    space = " " if rng.random() < 0.02 else ""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, tuple):
        members = (f"{text_of(key, rng)}:{space}{text_of(entry, rng)}" for key, entry in value[1])
        return "{" + f",{space}".join(members) + "}"
    if isinstance(value, list):
        return "[" + f",{space}".join(text_of(item, rng) for item in value) + "]"
    return json.dumps(value, ensure_ascii=rng.random() < 0.1)


def changed_number(value: float, rng: random.Random) -> Any:
    return rng.choice([
        lambda: value + rng.choice([-8, -4, -2, -1, 1, 2, 4, 8]),
        lambda: rng.choice(NUMBERS),
        lambda: -value,
        lambda: Raw(f"{value}.0"),
        lambda: Raw(rng.choice([f"{value}e0", f"0{value}", f"+{value}", f"{value}E1", "-0", "NaN", "1e400", "null"])),
        lambda: str(value),
        lambda: value * 2,
    ])()  # fmt: skip


def changed_list(items: list[Any], rng: random.Random, pair: bool) -> list[Any]:
    items = list(items)
    at = rng.randrange(len(items) + 1)
    some = items[min(at, len(items) - 1)] if items else (("a", 1) if pair else 1)
    choice = rng.randrange(5)
    if choice == 0 and items:
        del items[min(at, len(items) - 1)]
    elif choice == 1:
        items.insert(at, some)
    elif choice == 2 and items:
        rng.shuffle(items)
    elif choice == 3:
        items.insert(at, (rng.choice(WORDS), rng.choice(NUMBERS)) if pair else rng.choice(NUMBERS))
    elif items and pair:
        at = min(at, len(items) - 1)
        items[at] = (rng.choice([*WORDS, items[0][0]]), items[at][1])
    return items


def changed_json(value: Any, rng: random.Random, depth: int = 0) -> Any:
    """One place in it is changed."""
    inside = value[1] if isinstance(value, tuple) else value
    if isinstance(inside, list) and inside and rng.random() < 0.8:
        at = rng.randrange(len(inside))
        items = list(inside)
        if isinstance(value, tuple):
            items[at] = (items[at][0], changed_json(items[at][1], rng, depth + 1))
            return ("object", items)
        items[at] = changed_json(items[at], rng, depth + 1)
        return items
    if rng.random() < 0.05:
        return rng.choice([None, True, 1, "a", [], ("object", []), [[]], 1.5])
    if isinstance(value, tuple):
        return ("object", changed_list(inside, rng, pair=True))
    if isinstance(value, list):
        return changed_list(value, rng, pair=False)
    if isinstance(value, str):
        letters = Raw('"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in value) + '"')
        return rng.choice([rng.choice(WORDS), value + "x", value.upper(), value[:-1], letters])
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return changed_number(value, rng)
    return rng.choice(NUMBERS)


def changed_bytes(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    buffer = bytearray(data)
    at = rng.randrange(len(buffer) + 1)
    choice = rng.randrange(9)
    if choice == 0 and at < len(buffer):
        buffer[at] ^= 1 << rng.randrange(8)
    elif choice == 1 and at < len(buffer):
        buffer[at] = rng.choice(b'\x00\x01\x7f\x80\xff"\\{}[],:0123456789-.eE \n')
    elif choice == 2:
        del buffer[at : at + rng.choice([1, 2, 4, 8, 16, 100])]
    elif choice == 3:
        buffer[at:at] = buffer[at : at + rng.choice([1, 4, 16, 100])]
    elif choice == 4:
        buffer[at:at] = rng.randbytes(rng.choice([1, 2, 4, 8]))
    elif choice == 5:
        del buffer[at:]
    elif choice == 6:
        buffer += rng.randbytes(rng.choice([1, 8, 64]))
    elif choice == 7:
        width, letter = rng.choice([(2, "<H"), (4, "<I"), (8, "<Q")])
        buffer[at : at + width] = struct.pack(letter, rng.choice(NUMBERS) % 2 ** (8 * width))
    else:
        other = rng.choice(others)
        begin = rng.randrange(len(other) + 1)
        buffer[at : at + 32] = other[begin : begin + 32]
    return bytes(buffer)


def several(change: Callable[[Any], Any], value: Any, rng: random.Random) -> Any:
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        value = change(value)
    return value


def changed_safetensors(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Mostly the header's JSON, in a file that fits it."""
    if rng.random() < 0.2:
        return several(lambda d: changed_bytes(d, rng, others), data, rng)
    length = int.from_bytes(data[:8], "little")
    tree = several(lambda value: changed_json(value, rng), pairs_of(data[8 : 8 + length].decode()), rng)
    text = text_of(tree, rng) + rng.choice(["", "", "", " ", "   ", "\n", "\t"])
    header = (rng.choice([" ", "\n"]) if rng.random() < 0.01 else "") + text
    if rng.random() < 0.1:
        header = changed_bytes(header.encode(), rng, others).decode("utf-8", "replace")
    body = data[8 + length :]
    body += bytes(rng.choice([0, 0, 0, 1, 4, 8, 64]))
    encoded = header.encode("utf-8", "surrogatepass")
    return len(encoded).to_bytes(8, "little") + encoded + body


def changed_flashpack(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    if rng.random() < 0.2:
        return several(lambda d: changed_bytes(d, rng, others), data, rng)
    length = int.from_bytes(data[-16:-8], "little")
    payload, footer = data[: -16 - length], data[-16 - length : -16]
    tree = several(lambda value: changed_json(value, rng), pairs_of(footer.decode()), rng)
    if rng.random() < 0.2:
        payload += bytes(rng.choice([1, 2, 4, 8, 128]))
    text = text_of(tree, rng).encode("utf-8", "surrogatepass")
    return payload + text + len(text).to_bytes(8, "little") + data[-8:]


def rebuilt_zip(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """The same records, but for one or a few of them."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            records = [[info.filename, archive.read(info), zipfile.ZIP_STORED] for info in archive.infolist()]
    except zipfile.BadZipFile:  # torch can be told to write no checksums
        return changed_bytes(data, rng, others)
    for _ in range(rng.choice([1, 1, 2])):
        record = rng.choice(records)
        choice = rng.randrange(7)
        if choice == 0 and len(records) > 1:
            records.remove(record)
        elif choice == 1:
            record[2] = zipfile.ZIP_DEFLATED
        elif choice == 2:
            record[0] = rng.choice([record[0].upper(), record[0] + "x", "x" + record[0], record[0].replace("/", "//")])
        elif choice == 3:
            rng.shuffle(records)
        elif choice == 4:
            records.append([record[0] + "2", *record[1:]])
        else:
            pickled = next((r for r in records if str(r[0]).endswith("data.pkl")), record)
            pickled[1] = changed_bytes(pickled[1], rng, others)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content, method in records:
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


def changed_zip(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    choice = rng.random()
    if choice < 0.3:
        return several(lambda d: changed_bytes(d, rng, others), data, rng)
    if choice < 0.6:
        return rebuilt_zip(data, rng, others)
    # Near a signature: the fields of headers and of the directory.
    places = [i for i in range(len(data) - 4) if data[i : i + 2] == b"PK"]
    at = rng.choice(places) + rng.randrange(4, 64)
    if at >= len(data):
        return data
    value = rng.choice([data[at] ^ (1 << rng.randrange(8)), 0, 1, 255])
    return data[:at] + bytes([value]) + data[at + 1 :]
