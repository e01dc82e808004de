"""Headers of safetensors, footers of FlashPack and seals that lie."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hostile_case import GOOD_RECORD, GOOD_SAFETENSORS, Case, Family, flashpack_bytes, safetensors_bytes

HUGE = [2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30]
ODD_NUMBERS = ["-1", "1.5", "1e3", "1e999", "0x10", "+1", "01", "NaN", "Infinity", "true", "null", '"1"', "[1]", "{}"]
LIMIT = 100_000_000


def raw(text: str, data: bytes = bytes(8)) -> bytes:
    return safetensors_bytes(text.encode(), data)


def record(**change: Any) -> dict[str, Any]:
    return {**GOOD_RECORD, **change}


def of_tensor(text: str) -> bytes:
    return raw('{"x":' + text + "}")


def safetensors(folder: Path) -> Iterator[Case]:
    fields = '"dtype":"F32","shape":[2],"data_offsets":[0,8]'
    files: dict[str, bytes] = {
        **{f"a header of {n} bytes": struct.pack("<Q", n) + b"{}" for n in HUGE if n < 2**64},
        "a header of the limit and no more": struct.pack("<Q", LIMIT) + b"{" + b" " * 1000,
        "a header over the limit": struct.pack("<Q", LIMIT + 1) + b"{}",
        "a header of none": struct.pack("<Q", 0) + bytes(8),
        "a header of one": struct.pack("<Q", 1) + b"{" + bytes(8),
        "a header that overlaps the data": struct.pack("<Q", 70) + GOOD_SAFETENSORS[8:],
        "objects 100,000 deep": raw('{"a":' * 100_000),
        "lists 100,000 deep": raw('{"x":{"shape":' + "[" * 100_000),
        "metadata 100,000 deep": raw('{"__metadata__":' + '{"a":' * 100_000),
        "a name of a million letters": safetensors_bytes({"x" * 1_000_000: record(shape=[3])}),
        "a dtype of a million letters": safetensors_bytes({"x": record(dtype="F" * 1_000_000)}),
        "a key of a million letters": safetensors_bytes({"x": {**GOOD_RECORD, "k" * 1_000_000: 1}}),
        "a number of a million digits": of_tensor(
            '{"dtype":"F32","shape":[' + "9" * 1_000_000 + '],"data_offsets":[0,8]}'
        ),
        "a million dimensions": of_tensor('{"dtype":"F32","shape":[' + "1," * 1_000_000 + '1],"data_offsets":[0,8]}'),
        "a million dimensions of 2^63 - 1": of_tensor(
            '{"dtype":"F32","shape":[' + "9223372036854775807," * 100_000 + '0],"data_offsets":[0,8]}'
        ),
        "a million offsets": of_tensor('{"dtype":"F32","shape":[2],"data_offsets":[' + "0," * 1_000_000 + "8]}"),
        "a million escapes": safetensors_bytes(b'{"' + b"\\u0041" * 1_000_000 + b'":1}'),
        "a string that does not end": raw('{"x'),
        "an escape at the end": raw('{"x\\'),
        "half a surrogate pair": raw('{"\\ud800":{' + fields + "}}"),
        "a NUL in a name": raw('{"a\\u0000b":{' + fields.replace("[2]", "[3]") + "}}"),
        "escapes of a terminal in a name": raw('{"\\u001b[2J\\u001b]0;owned\\u0007":{' + fields + "}}"),
        "line ends in a name": raw('{"a\\nb\\r\\nerror: c":{' + fields + "}}"),
        "text that turns around": raw('{"\\u202eevil\\u2066":{' + fields + "}}"),
        "the same name twice": raw('{"x":{' + fields + '},"x":{' + fields + "}}"),
        "the same name twice, once escaped": raw('{"x":{' + fields + '},"\\u0078":{' + fields + "}}"),
        "the same field twice": raw('{"x":{"dtype":"U8",' + fields + "}}"),
        "metadata twice": raw('{"__metadata__":{},"__metadata__":{},"x":{' + fields + "}}"),
        "metadata that is a number": raw('{"__metadata__":{"a":1},"x":{' + fields + "}}"),
        "a trailing comma": raw('{"x":{' + fields + "},}"),
        "a comment": raw('{/* hello */"x":{' + fields + "}}"),
        "two documents": raw('{"x":{' + fields + "}}{}"),
        "a byte-order mark": safetensors_bytes(b"\xef\xbb\xbf{}", b""),
        "UTF-16": safetensors_bytes('{"x":1}'.encode("utf-16")),
        "bytes that are not UTF-8": safetensors_bytes(b'{"\xc0\xaf":1}'),
        "an empty tensor of 2^62 rows": safetensors_bytes(
            {"x": record(shape=[2**62, 2**62], data_offsets=[0, 0])}, b""
        ),
        "tensors that overlap": safetensors_bytes({"x": record(), "y": record(data_offsets=[4, 12])}, bytes(12)),
        "tensors over the same bytes": safetensors_bytes({"x": record(), "y": record()}),
        "a tensor over the header": safetensors_bytes({"x": record(data_offsets=[2**64 - 8, 2**64 - 1])}),
        "a tensor that ends before it begins": safetensors_bytes({"x": record(data_offsets=[8, 0])}),
        "a hole": safetensors_bytes({"x": record(data_offsets=[8, 16])}, bytes(16)),
        "bytes behind the last tensor": GOOD_SAFETENSORS + b"\0",
        "data that is cut off": GOOD_SAFETENSORS[:-1],
        "a path for a name": safetensors_bytes({"../../outside/secret": record()}),
    }
    for number in HUGE:
        files[f"a dimension of {number}"] = safetensors_bytes({"x": record(shape=[number])})
        files[f"two dimensions of {number}"] = safetensors_bytes({"x": record(shape=[number, number])})
        files[f"an offset of {number}"] = safetensors_bytes({"x": record(data_offsets=[number, number])})
        files[f"an end of {number}"] = safetensors_bytes({"x": record(data_offsets=[0, number])})
    for odd in ODD_NUMBERS:
        files[f"the dimension {odd}"] = of_tensor('{"dtype":"F32","shape":[' + odd + '],"data_offsets":[0,8]}')
        files[f"the offset {odd}"] = of_tensor('{"dtype":"F32","shape":[2],"data_offsets":[' + odd + ",8]}")
        files[f"the dtype {odd}"] = of_tensor('{"dtype":' + odd + ',"shape":[2],"data_offsets":[0,8]}')
    sound = ("escapes of a terminal", "line ends", "text that turns", "2^62 rows", "a path for a name")
    for number, (title, data) in enumerate(files.items()):
        path = folder / f"{number}.safetensors"
        path.write_bytes(data)
        yield Case(title, path, sound=title.startswith(sound) or "2^62 rows" in title)


def footer(**change: Any) -> dict[str, Any]:
    block = {"dtype": "float32", "offset_bytes": 0, "length_bytes": 8, "length_elems": 2}
    entry = {"name": "x", "shape": [2], "offset": 0, "length": 2, "macroblock": 0}
    whole = {"format": "flashpack_v4", "macroblocks": [{**block, **change.pop("block", {})}]}
    return {**whole, "index": [{**entry, **change.pop("entry", {})}], **change}


def flashpack(folder: Path) -> Iterator[Case]:
    good = json.dumps(footer()).encode()
    files: dict[str, bytes] = {
        **{f"a footer of {n} bytes": bytes(8) + good + struct.pack("<Q", n) + b"FLASHPK\0" for n in HUGE if n < 2**64},
        "a footer of none": bytes(8) + struct.pack("<Q", 0) + b"FLASHPK\0",
        "a footer 100,000 deep": flashpack_bytes(b'{"a":' * 100_000),
        "an index 100,000 deep": flashpack_bytes(b'{"index":' + b"[" * 100_000),
        "a name of a million letters": flashpack_bytes(footer(entry={"name": "x" * 1_000_000, "length": 3})),
        "a million dimensions": flashpack_bytes(footer(entry={"shape": [1] * 1_000_000})),
        "the same name twice": flashpack_bytes({**footer(), "index": footer()["index"] * 2}),
        "blocks that overlap": flashpack_bytes({**footer(), "macroblocks": footer()["macroblocks"] * 2}),
        "a field twice": flashpack_bytes(good.replace(b'"index"', b'"index":[],"index"')),
        "no index": flashpack_bytes({"format": "flashpack_v4", "macroblocks": footer()["macroblocks"]}),
        "another format": flashpack_bytes(footer(format="flashpack_v9")),
        "metadata of objects": flashpack_bytes(footer(metadata={"a": {}})),
        "a payload of other size": flashpack_bytes(footer(payload_bytes=2**63)),
        "a mark that is cut off": flashpack_bytes(footer())[:-1],
    }
    for number in [*HUGE, -1, 1.5, None, "1", [1], True]:
        for key in ("offset_bytes", "length_bytes", "length_elems"):
            files[f"a block's {key} {number}"] = flashpack_bytes(footer(block={key: number}))
        for key in ("offset", "length", "macroblock"):
            files[f"a tensor's {key} {number}"] = flashpack_bytes(footer(entry={key: number}))
        files[f"a dimension of {number}"] = flashpack_bytes(footer(entry={"shape": [number]}))
        files[f"total_elems {number}"] = flashpack_bytes(footer(total_elems=number))
    for number, (title, data) in enumerate(files.items()):
        path = folder / f"{number}.flashpack"
        path.write_bytes(data)
        # What is not looked at in this version of the format, or says the truth in other words.
        yield Case(title, path, sound=title.endswith((" None", " 0")))


def sealed(text: bytes) -> bytes:
    return text + b'  "crc32c": "%08x"\n}\n' % crc32c(text)


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def seals(folder: Path) -> Iterator[Case]:
    size = len(GOOD_SAFETENSORS)
    texts: dict[str, bytes] = {
        "nothing": b"",
        "no seal": b"{}",
        "a megabyte of braces": b"{" * 1_000_000,
        "another version": sealed(b'{\n  "penstock.seal": 2,\n'),
        "a size of 2^64 - 1": sealed(b'{\n  "penstock.seal": 1,\n  "size": 18446744073709551615,\n'),
        "a block size of 1": sealed(b'{\n  "penstock.seal": 1,\n  "size": %d,\n  "block_size": 1,\n' % size),
        "a block size of 2^63": sealed(
            b'{\n  "penstock.seal": 1,\n  "size": %d,\n  "block_size": 9223372036854775808,\n' % size
        ),
        "blocks that are no digits": sealed(
            b'{\n  "penstock.seal": 1,\n  "size": %d,\n  "block_size": 512,\n  "blocks": "../../..",\n' % size
        ),
        "an unknown field": sealed(b'{\n  "penstock.seal": 1,\n  "path": "../outside/secret.safetensors",\n'),
        "tensors that are elsewhere": sealed(
            b'{\n  "penstock.seal": 1,\n  "size": %d,\n  "tensors": [{"name": "x", "dtype": "F32", "shape": [2], '
            b'"offset": 9223372036854775807, "nbytes": 8, "crc32c": "00000000"}],\n' % size
        ),
        "a checksum of its own that is wrong": b'{\n  "penstock.seal": 1,\n  "crc32c": "00000000"\n}\n',
    }
    for number, (title, text) in enumerate(texts.items()):
        path = folder / f"{number}.safetensors"
        path.write_bytes(GOOD_SAFETENSORS)
        Path(f"{path}.seal.json").write_bytes(text)
        yield Case(f"a seal: {title}", path, sound=True)
    for title, metadata in {
        "too few": {"penstock.crc32c": "00"},
        "no digits": {"penstock.crc32c": "x" * 8},
        "wrong": {"penstock.crc32c": f"{zlib.crc32(b'x'):08x}"},
    }.items():
        path = folder / f"checksums-{title.replace(' ', '-')}.safetensors"
        path.write_bytes(safetensors_bytes({"__metadata__": metadata, "x": GOOD_RECORD}))
        yield Case(f"checksums in the metadata: {title}", path, sound=True)


FAMILIES: dict[str, Family] = {"safetensors headers": safetensors, "FlashPack footers": flashpack, "seals": seals}
