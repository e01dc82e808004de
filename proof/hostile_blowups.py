"""Inputs that make a careless reader quadratic, or take memory that is a multiple of theirs."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hostile_case import GOOD_SAFETENSORS, Case, Family, flashpack_bytes, safetensors_bytes
from hostile_case import pickles as p
from hostile_directories import INDEX, METADATA
from hostile_zips import Entry, zip_bytes

ONE_HASH = 2**61 - 1  # Python hashes an integer to its remainder by this number
MULTIPLIER = 0xC6A4A7935BD1E995  # of MurmurHash64A, which std::hash is, and its seed there
SEED = 0xC70F6907
MASK = 2**64 - 1


@cache
def colliding_names(count: int, eighth: str = "x") -> list[str]:
    """Names that all have one std::hash: after any eight bytes come those that lead back to one state."""
    random = np.random.default_rng(7)
    refused = [ord(each) for each in '\0\n/"\\']
    multiplier = np.uint64(MULTIPLIER)
    start = np.uint64(SEED ^ (16 * MULTIPLIER & MASK))
    inverse = np.uint64(pow(MULTIPLIER, -1, 2**64))

    def mixed(block: Any) -> Any:
        block = block * multiplier
        return (block ^ (block >> np.uint64(47))) * multiplier

    def unmixed(block: Any) -> Any:
        block = block * inverse
        return (block ^ (block >> np.uint64(47))) * inverse

    names: list[str] = []
    with np.errstate(over="ignore"):
        while len(names) < count:
            first = random.integers(0x61, 0x7B, (1 << 18, 8), dtype=np.uint8)
            first[:, 7] = ord(eighth)
            state = (start ^ mixed(first.view("<u8").ravel())) * multiplier
            # The next step is (state ^ mixed(second)) * multiplier: what is in the parentheses is to be 1.
            second = unmixed(state ^ np.uint64(1)).view(np.uint8).reshape(-1, 8)
            good = ((second < 0x80) & ~np.isin(second, refused)).all(1)
            names += [bytes(each).decode() for each in np.hstack([first[good], second[good]])]
    return names[:count]


def tensors(body: bytes, *storages: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    p.write_zip(path, body, *storages)
    return path


def pickles(folder: Path) -> Iterator[Case]:
    weights = p.storage("FloatStorage", "0", 6)
    view = p.tensor(weights, 0, (6,), (1,))
    scale = 500_000

    def case(title: str, body: bytes, sound: bool = True) -> Case:
        path = folder / f"{title.replace(' ', '-').replace(',', '').replace('/', '')}.pt"
        p.write_zip(path, body, bytes(24))
        return Case(title, path, sound)

    yield case("4.9 MB of nesting, lists", b"](" * 1_600_000 + b"e" * 1_600_000)
    yield case("4.9 MB of nesting, tuples", b"N" + b"\x85" * 4_900_000)
    yield case("4.9 MB of empty lists", b"](" + b"]" * 4_900_000 + b"e")
    yield case("4.9 MB of empty dicts that are dropped", b"}" + b"}0" * 2_450_000)
    yield case("5 MB of None", b"](" + b"N" * 5_000_000 + b"e")
    yield case("5 MB of small integers", b"](" + b"K\x01" * 2_500_000 + b"e")
    yield case("5 MB of duplicates of a list", b"](" + b"]" + b"2" * 5_000_000 + b"e")
    yield case("3 MB of marks", b"(" * 3_000_000)
    yield case("4 MB of calls", b"](" + p.ORDERED_DICT[:-2] + b"q\x00" + b"h\x00)R" * 1_000_000 + b"e")
    yield case(
        "4 MB of objects of one class", b"](" + p.name("a" * 900, "B") + b"q\x00" + b"h\x00)\x81" * 1_000_000 + b"e"
    )
    yield case("tensors that share a long shape", b"](" + p.name("torch._utils", "_rebuild_tensor_v2") + b"q\x000"
               + p.group(weights, b"K\x00", p.numbers(*[1] * 64), p.numbers(*[1] * 64), b"\x89", p.ORDERED_DICT)
               + b"q\x010" + b"h\x00h\x01R" * scale + b"e")  # fmt: skip
    yield case("25 MB of views", b"](" + b"".join((view, b"q\x05")) + b"".join(
        p.tensor(weights, i % 6, (1,), (1,)) for i in range(120_000)) + b"e")  # fmt: skip
    yield case("storages of one long key", b"](" + p.text("storage") + b"q\x000"
               + p.name("torch", "FloatStorage") + b"q\x010"
               + p.text("k" * scale) + b"q\x020" + b"(h\x00h\x01h\x02h\x02K\x06tQ" * 50_000 + b"e")  # fmt: skip
    yield case("storages of one long location", b"](" + p.text("storage") + b"q\x000" + p.name("torch", "FloatStorage")
               + b"q\x010" + p.text("k" * scale) + b"q\x020"
               + b"".join(b"(h\x00h\x01" + p.text(str(i)) + b"h\x02K\x06tQ" for i in range(20_000)) + b"e")  # fmt: skip
    doubled = b"](" + view + b"eq\x000"
    for level in range(1, 30):
        doubled += b"](" + bytes([0x68, level - 1]) * 2 + b"eq" + bytes([level]) + b"0"
    yield case("a billion paths to one tensor", doubled + b"h\x1d", sound=False)
    yield case("a billion paths to nothing", doubled.replace(view, b"K\x01") + b"h\x1d", sound=False)
    long = b"}" + p.text("k" * 60_000) + b"](" + view + b"q\x00" + b"h\x00" * 1000 + b"es"
    yield case("a long key above a thousand tensors", long)
    nested = b"".join(b"}" + p.text("k" * 1000) for _ in range(300)) + view + b"s" * 300
    yield case("300 long keys in each other", nested)
    integers = [b"\x8a\x0a" + (7 + i * ONE_HASH).to_bytes(10, "little", signed=True) for i in range(20_000)]
    yield case("20,000 integers of one hash", b"}(" + b"".join(each + b"N" for each in integers) + b"u")
    yield case(
        "20,000 integers of one hash, in a set", p.name("builtins", "set") + b"](" + b"".join(integers) + b"e\x85R"
    )
    yield case("20,000 integers of one hash, in tuples", b"}(" + b"".join(each + b"\x85N" for each in integers) + b"u")
    yield case("20,000 integers of one hash, one by one", b"}" + b"".join(each + b"Ns" for each in integers))
    floats = [b"G" + struct.pack(">d", float(2**61) * 2.0 ** (61 * (i % 15)) * (1 + i // 15)) for i in range(20_000)]
    yield case("20,000 floats of few hashes", b"}(" + b"".join(each + b"N" for each in floats) + b"u")
    big = b"\x8b" + struct.pack("<I", 1_000_000) + b"\x7f" * 1_000_000
    yield case("an integer of a million bytes", big)
    yield case("an integer of a million bytes as a key", b"}" + big + b"Ns")
    names = colliding_names(50_000)
    yield case("5,000 names of one hash", b"}(" + b"".join(p.text(n) + view for n in names[:5000]) + b"u")
    spaced = colliding_names(20_000, " ")
    yield case("20,000 classes of one hash", b"](" + b"".join(p.name(n[:7], n[8:]) for n in spaced) + b"e")
    yield case("attributes of one hash", b"}" + p.text("o") + p.name("x", "Y") + b")\x81}("
               + b"".join(p.text(n) + view for n in names[5000:15_000]) + b"ubs")  # fmt: skip
    arrays = p.name("numpy._core.numeric", "_frombuffer") + b"q\x000" + b"C" + b"\xff" + bytes(255) + b"q\x010"
    yield case("arrays that share their bytes", b"](" + arrays + b"h\x00(h\x01tR" * 100_000 + b"e")
    path = folder / "records.pt"
    path.write_bytes(zip_bytes([Entry("m/data.pkl", p.whole(b"}")), *(Entry(f"m/{n}"[:20], b"") for n in names)]))
    yield Case("50,000 records of one hash", path, sound=True)
    path = folder / "legacy.pt"
    listed = p.whole(b"](" + b"".join(map(p.text, names)) + b"e")
    path.write_bytes(p.LEGACY_START + p.whole(b"}") + listed)
    yield Case("50,000 storages of one hash, legacy", path)


def headers(folder: Path) -> Iterator[Case]:
    names = colliding_names(50_000)
    empty = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'

    def case(title: str, data: bytes, suffix: str = "safetensors", sound: bool = True) -> Case:
        path = folder / f"{title.replace(' ', '-').replace(',', '')}.{suffix}"
        path.write_bytes(data)
        return Case(title, path, sound)

    text = "{" + ",".join(f"{json.dumps(name)}:{empty}" for name in names) + "}"
    yield case("50,000 tensors of one hash", safetensors_bytes(text.encode(), b""))
    twice = f"{text[:-1]},{json.dumps(names[7])}:{empty}}}"
    yield case("50,000 tensors of one hash, one twice", safetensors_bytes(twice.encode(), b""), sound=False)
    text = "{" + ",".join(f'"{i}":{empty}' for i in range(100_000)) + "}"
    yield case("100,000 empty tensors", safetensors_bytes(text.encode(), b""))
    record = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    text = "{" + ",".join(f'"{i}":{record}' for i in range(100_000)) + "}"
    yield case("100,000 tensors of one byte", safetensors_bytes(text.encode(), b"x"), sound=False)
    metadata = {f"k{i}": "v" for i in range(200_000)}
    yield case("200,000 entries of metadata", safetensors_bytes({"__metadata__": metadata}, b""))
    yield case("10 MB of white space", safetensors_bytes(b"{" + b" " * 10_000_000 + b"}", b""))
    shape = "1," * 1_000_000 + "1"
    yield case("a tensor of a million dimensions", safetensors_bytes(
        f'{{"x":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,1]}}}}'.encode(), b"x"))  # fmt: skip
    footer = {
        "format": "flashpack_v4",
        "macroblocks": [{"dtype": "uint8", "offset_bytes": 0, "length_bytes": 0, "length_elems": 0}],
    }
    index = [{"name": name, "shape": [0], "offset": 0, "length": 0, "macroblock": 0} for name in names]
    yield case("50,000 tensors of one hash", flashpack_bytes({**footer, "index": index}, b""), "flashpack")
    blocks = footer["macroblocks"] * 100_000
    yield case(
        "100,000 blocks of nothing", flashpack_bytes({**footer, "macroblocks": blocks, "index": []}, b""), "flashpack"
    )


def directories(folder: Path) -> Iterator[Case]:
    names = colliding_names(50_000)

    def make(name: str, files: dict[str, Any]) -> Path:
        path = folder / name
        path.mkdir()
        (path / "x.safetensors").write_bytes(GOOD_SAFETENSORS)
        for file, content in files.items():
            (path / file).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    yield Case("an index of 50,000 names of one hash",
               make("hash", {INDEX: {"weight_map": dict.fromkeys(names, "x.safetensors")}}))  # fmt: skip
    yield Case(
        "an index of 50,000 shards",
        make("shards", {INDEX: {"weight_map": {n: f"{i}.st" for i, n in enumerate(names)}}}),
    )
    two = make("two", {})
    empty = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    for number, part in enumerate((names[:25_000], names[25_000:])):
        text = "{" + ",".join(f"{json.dumps(name)}:{empty}" for name in part) + "}"
        (two / f"{number}.safetensors").write_bytes(safetensors_bytes(text.encode(), b""))
    yield Case("two shards of 25,000 tensors of one hash", two, sound=True)
    # Each shares its rows with all others, and no two share an element: what a sum of sizes does not tell.
    chunk = [{"file": 0, "offsets": [i, i], "shape": [4000, 1]} for i in range(3000)]
    wide = {"dtype": "U8", "shape": [7000, 7000], "chunks": chunk}
    whole = {"format": "penstock.dcp", "version": 1, "files": ["x.safetensors"], "objects": {}}
    path = make("chunks", {"dcp.json": {**whole, "tensors": {"x": wide}}})
    yield Case("3,000 chunks side by side", path, sound=True)
    many = {"dtype": "F32", "shape": [2] * 100_000, "chunks": []}
    yield Case("a tensor of 100,000 dimensions", make("dimensions", {"dcp.json": {**whole, "tensors": {"x": many}}}))
    state = b"".join(p.text(f"k{i}") + b"N" for i in range(20_000))
    index = p.name(METADATA, "MetadataIndex") + b")\x81}(" + state + p.text("fqn") + p.text("x") + b"ubq\x000"
    body = (
        p.name(METADATA, "Metadata") + b")\x81}(" + p.text("storage_data") + b"}(" + index.replace(b"q\x000", b"q\x00N")
    )
    body += b"h\x00N" * 100_000 + b"u" + p.text("state_dict_metadata") + b"}ub"
    yield Case("100,000 entries of one large object", make("metadata", {".metadata": p.whole(body)}), sound=True)
    name = p.text("x" * 200_000) + b"q\x010"
    entry = p.name(METADATA, "MetadataIndex") + b")\x81}(" + p.text("fqn") + b"h\x01" + p.text("offset")
    places = b"".join(entry + p.name("torch", "Size") + p.numbers(i) + b"\x85RubN" for i in range(10_000))
    body = name + p.name(METADATA, "Metadata") + b")\x81}(" + p.text("storage_data") + b"}(" + places + b"u"
    yield Case(
        "10,000 chunks of one long name",
        make("long", {".metadata": p.whole(body + p.text("state_dict_metadata") + b"}ub")}),
        sound=True,
    )
    appear = b"".join(b"appear %d 1 13 x.safetensors\n" % i for i in range(100_000))
    journal = make("journal", {".x.safetensors.saving": b"penstock set 1\nindex 1 1 1 x\n" + appear + b"end\n"})
    for i in range(300):
        (journal / f"{i}.safetensors").write_bytes(GOOD_SAFETENSORS.replace(b'"x"', b'"%d"' % i) if i < 10 else b"")
    yield Case("a journal of 100,000 names beside 300 files", journal)


def large(folder: Path) -> Iterator[Case]:
    """Sound files that are headers and little else, at their limits: memory by the byte."""
    empty = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    path = folder / "header.safetensors"
    text = "{" + ",".join(f'"{i}":{empty}' for i in range(1_600_000)) + "}"
    path.write_bytes(safetensors_bytes(text.encode(), b""))
    yield Case("a header of 1.6 million tensors", path, sound=True)
    directory = folder / "index"
    directory.mkdir()
    (directory / "x.safetensors").write_bytes(GOOD_SAFETENSORS)
    index = {"weight_map": {f"model.layers.{i}.weight": "x.safetensors" for i in range(1_900_000)}}
    (directory / INDEX).write_text(json.dumps(index))
    yield Case("an index of 1.9 million tensors", directory)


FAMILIES: dict[str, Family] = {
    "blow-ups in pickles": pickles,
    "blow-ups in headers": headers,
    "blow-ups in directories": directories,
    "large and sound": large,
}
