"""Zip archives that two readers would read differently, or that promise more than they hold; files of two formats."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hostile_case import GOOD_SAFETENSORS, Case, Family
from hostile_case import pickles as p

WEIGHTS = p.whole(b"}" + p.text("w") + p.tensor(p.storage("FloatStorage", "0", 6), 0, (6,), (1,)) + b"s")
GADGET = p.whole(p.name("os", "system") + p.text("touch ../outside/was-here") + b"\x85R")


@dataclass
class Entry:
    """A record; what its headers say where that is not the truth."""

    name: str
    data: bytes
    method: int = 0
    flags: int = 0
    local: dict[str, Any] = field(default_factory=dict)
    central: dict[str, Any] = field(default_factory=dict)
    extra: bytes = b""
    behind: bytes = b""  # a descriptor, or what is none

    def fields(self, which: dict[str, Any]) -> dict[str, Any]:
        stored = self.stored()
        truth = {"name": self.name.encode(), "crc": zlib.crc32(self.data), "compressed": len(stored)}
        return {**truth, "nbytes": len(self.data), "method": self.method, "flags": self.flags, **which}

    def stored(self) -> bytes:
        if self.method != 8:
            return self.data
        squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
        return squeeze.compress(self.data) + squeeze.flush()


def zip_bytes(
    entries: list[Entry], before: bytes = b"", comment: bytes = b"", behind: bytes = b"", **end: Any
) -> bytes:
    body = before
    directory = b""
    for entry in entries:
        at = len(body)
        f = entry.fields(entry.local)
        sizes = (f["crc"], f["compressed"], f["nbytes"], len(f["name"]), len(entry.extra))
        body += struct.pack("<IHHHIIIIHH", 0x04034B50, 20, f["flags"], f["method"], 0, *sizes) + f["name"]
        body += entry.extra + entry.stored() + entry.behind
        f = entry.fields(entry.central)
        sizes = (f["crc"], f["compressed"], f["nbytes"], len(f["name"]), len(entry.extra))
        directory += struct.pack("<IHHHHIIIIHH", 0x02014B50, 20, 20, f["flags"], f["method"], 0, *sizes)
        directory += struct.pack("<HHHII", 0, 0, 0, 0, f.get("offset", at)) + f["name"] + entry.extra
    truth = {"count": len(entries), "nbytes": len(directory), "offset": len(body), **end}
    tail = (truth["count"], truth["count"], truth["nbytes"], truth["offset"], len(comment))
    return (
        body + directory + end.get("zip64", b"") + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, *tail) + comment + behind
    )


def zip64_end(count: int, nbytes: int, offset: int, at: int) -> bytes:
    record = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, nbytes, offset)
    return record + struct.pack("<IIQI", 0x07064B50, 0, at, 1)


def good() -> list[Entry]:
    return [Entry("m/data.pkl", WEIGHTS), Entry("m/data/0", bytes(24)), Entry("m/version", b"3\n")]


def changed(number: int, **change: Any) -> list[Entry]:
    entries = good()
    for name, value in change.items():
        setattr(entries[number], name, value)
    return entries


def zips(folder: Path) -> Iterator[Case]:
    last = good()
    last_at = len(zip_bytes(last[:1])) - 22 - 46 - len("m/data.pkl")
    files = {
        "two records of one name": zip_bytes([*good(), Entry("m/data/0", b"\xff" * 24)]),
        "two pickles of one name": zip_bytes([Entry("m/data.pkl", GADGET), *good()]),
        "two names that differ in case": zip_bytes([*good(), Entry("m/DATA.PKL", GADGET)]),
        "two folders": zip_bytes([*good(), Entry("n/data.pkl", GADGET)]),
        "another name in the local header": zip_bytes(changed(0, local={"name": b"m/data.pk_"})),
        "another size in the local header": zip_bytes(changed(1, local={"compressed": 12, "nbytes": 12})),
        "another checksum in the local header": zip_bytes(changed(1, local={"crc": 1})),
        "another method in the local header": zip_bytes(changed(1, local={"method": 8})),
        "an encrypted record": zip_bytes(changed(1, flags=1)),
        "a local header elsewhere": zip_bytes(changed(1, central={"offset": 0})),
        "a record that overlaps the next": zip_bytes(changed(0, central={"compressed": 2000, "nbytes": 2000})),
        "a record that goes beyond the file": zip_bytes(changed(1, central={"compressed": 2**32 - 2})),
        "a record at the end of the file": zip_bytes(changed(1, central={"offset": 2**32 - 2})),
        "a record in the central directory": zip_bytes(changed(2, central={"offset": last_at + 100_000})),
        "a stored record of two sizes": zip_bytes(changed(1, central={"nbytes": 48}, local={"nbytes": 48})),
        "a descriptor that lies": zip_bytes(
            changed(1, flags=8, behind=struct.pack("<IIII", 0x08074B50, 0, 12, 12), local={"nbytes": 0})
        ),
        "a descriptor without a signature": zip_bytes(changed(1, flags=8, behind=struct.pack("<III", 0, 24, 24))),
        "a descriptor that is not there": zip_bytes(changed(1, flags=8)),
        "bytes between the records": zip_bytes(changed(0, behind=b"PK\x03\x04 here is another one")),
        "a comment": zip_bytes(good(), comment=b"nice weights"),
        "a comment that is an end record": zip_bytes(good(), comment=zip_bytes([])),
        "an end record in an end record": zip_bytes(good()) + zip_bytes([Entry("m/data.pkl", GADGET)]),
        "bytes after the end": zip_bytes(good(), behind=b"\0" * 64),
        "bytes before the first record": zip_bytes(good(), before=b"#!/bin/sh\nexit\n"),
        "a directory elsewhere": zip_bytes(good(), offset=0),
        "a directory of 4 GB": zip_bytes(good(), nbytes=2**32 - 2),
        "65,534 records that are not there": zip_bytes(good(), count=65534),
        "fewer records than there are": zip_bytes(good(), count=1),
        "an extra field that is cut off": zip_bytes(changed(1, extra=b"\x01\x00\xff\xff")),
        "two zip64 fields": zip_bytes(changed(1, extra=struct.pack("<HHQHHQ", 1, 8, 24, 1, 8, 12))),
        "a zip64 field that says 2^63": zip_bytes(
            changed(
                1,
                extra=struct.pack("<HHQQ", 1, 16, 2**63, 2**63),
                central={"nbytes": 2**32 - 1},
                local={"nbytes": 2**32 - 1},
            )
        ),
        "a zip64 end that is not there": zip_bytes(good(), count=65535, nbytes=2**32 - 1, offset=2**32 - 1),
        "a zip64 end of 2^64 records": zip_bytes(good(), zip64=zip64_end(2**64 - 1, 2**64 - 1, 2**64 - 1, 0)),
        "a zip64 end that disagrees": zip_bytes(good(), zip64=zip64_end(1, 60, 0, 1)),
        "no pickle": zip_bytes(good()[1:]),
        "no storage": zip_bytes(good()[:1]),
        "a pickle outside of a folder": zip_bytes([Entry("data.pkl", WEIGHTS), Entry("data/0", bytes(24))]),
        "a folder called ..": zip_bytes([Entry("../data.pkl", WEIGHTS), Entry("../data/0", bytes(24))]),
        "a folder called /etc": zip_bytes([Entry("/etc/data.pkl", WEIGHTS), Entry("/etc/data/0", bytes(24))]),
        "a name with a NUL": zip_bytes([*good(), Entry("m/data/0\0x", b"")]),
        "a name that is not UTF-8": zip_bytes(changed(1, local={"name": b"m/\xff"}, central={"name": b"m/\xff"})),
        "a name of escapes": zip_bytes([*good(), Entry("m/\x1b]0;owned\x07", b"")]),
        "bzip2": zip_bytes(changed(1, method=12)),
        "a big-endian machine": zip_bytes([*good(), Entry("m/byteorder", b"big")]),
        "a byte order of a megabyte": zip_bytes([*good(), Entry("m/byteorder", b"little" * 200_000)]),
        "a TorchScript archive": zip_bytes(
            [*good(), Entry("m/constants.pkl", GADGET), Entry("m/code/x.py", b"import os")]
        ),
        "a Python program that is a zip": zip_bytes([Entry("__main__.py", b"import os")]),
        "a Keras archive": zip_bytes([Entry("config.json", b"{}"), Entry("model.weights.h5", b"x")]),
    }
    for number, (title, data) in enumerate(files.items()):
        path = folder / f"{number}.pt"
        path.write_bytes(data)
        yield Case(title, path, sound=title in ("a TorchScript archive", "a folder called ..", "a name of escapes"))


def bombs(folder: Path) -> Iterator[Case]:
    """Little that inflates to much."""
    zeros = bytes(64 << 20)
    files = {
        "a pickle of 64 MiB in 64 KiB": [Entry("m/data.pkl", b"\x80\x02" + zeros + b".", method=8)],
        "a pickle of lists, 64 MiB in 64 KiB": [Entry("m/data.pkl", b"\x80\x02" + b"]" * len(zeros), method=8)],
        "a pickle of one text, 64 MiB in 64 KiB": [
            Entry("m/data.pkl", b"\x80\x02X" + struct.pack("<I", len(zeros)) + zeros + b".", method=8)
        ],
        "a pickle whose checksum is another's": [
            Entry("m/data.pkl", WEIGHTS, method=8, local={"crc": 7}, central={"crc": 7})
        ],
        "deflate that never ends": [Entry("m/data.pkl", WEIGHTS), Entry("m/data/0", b"\0" * 24, method=8, behind=b"x")],
        "deflate of more than it says": [
            Entry("m/data.pkl", WEIGHTS),
            Entry("m/data/0", zeros, method=8, central={"nbytes": 24}, local={"nbytes": 24}),
        ],
        "deflate of less than it says": [
            Entry("m/data.pkl", WEIGHTS),
            Entry("m/data/0", b"x" * 3, method=8, central={"nbytes": 24}, local={"nbytes": 24}),
        ],
        "deflate of 2^31 in 30 bytes": [
            Entry("m/data.pkl", WEIGHTS),
            Entry("m/data/0", b"x" * 24, method=8, central={"nbytes": 2**31}, local={"nbytes": 2**31}),
        ],
        "a version of 64 MiB": [*good()[:2], Entry("m/version", zeros, method=8)],
        "20,000 records": [*good(), *(Entry(f"m/x{i}", b"") for i in range(20_000))],
    }
    for number, (title, entries) in enumerate(files.items()):
        path = folder / f"{number}.pt"
        path.write_bytes(zip_bytes(entries))
        yield Case(
            title,
            path,
            sound=title in ("20,000 records", "deflate of more than it says", "deflate of less than it says"),
        )


def polyglots(folder: Path) -> Iterator[Case]:
    archive = zip_bytes(good())
    html = b"<!DOCTYPE html><script>alert(1)</script>"
    files = {
        "a zip behind safetensors": GOOD_SAFETENSORS + archive,
        "safetensors whose data is a zip": struct.pack("<Q", 60)
        + b'{"x":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}'.ljust(60) % (len(archive), len(archive)),
        "a pickle before a zip": GADGET + archive,
        "a zip and a pickle": archive + GADGET,
        "a legacy file before a zip": p.LEGACY_START + p.whole(b"}") + p.whole(b"]") + archive,
        "a FlashPack mark behind a zip": archive + struct.pack("<Q", 2) + b"FLASHPK\0",
        "a FlashPack mark behind safetensors": GOOD_SAFETENSORS + b"{}" + struct.pack("<Q", 2) + b"FLASHPK\0",
        "HTML": html * 20,
        "HTML and a zip": html + archive,
        "a script and a zip": b"#!/bin/sh\ntouch ../outside/was-here\n" + archive,
        "a picture": b"\x89PNG\r\n\x1a\n" + b"\0" * 200,
        "an ELF program": b"\x7fELF" + b"\0" * 200,
        "HDF5": b"\x89HDF\r\n\x1a\n" + b"\0" * 200,
        "a NumPy file of objects": b"\x93NUMPY\x01\x00\x2e\x00{'descr': '|O', 'shape': (1,)}".ljust(56) + GADGET,
        "GGUF": b"GGUF\x03\x00\x00\x00" + struct.pack("<QQ", 2**63, 2**63),
        "gzip": b"\x1f\x8b\x08" + b"\0" * 100,
        "XML of a billion laughs": b'<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><l>&b;</l>',
        "a pointer of git-lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12\n",
        "nothing": b"",
        "one byte": b"\x80",
        "zeros": bytes(4096),
        "JSON": b'{"weight_map": {}}',
    }
    for number, (title, data) in enumerate(files.items()):
        for suffix in ("safetensors", "pt", "flashpack"):
            path = folder / f"{number}.{suffix}"
            path.write_bytes(data)
            yield Case(f"{title} (.{suffix})", path, sound="legacy file before" in title)


FAMILIES: dict[str, Family] = {"zip tricks": zips, "deflate bombs": bombs, "files of two formats": polyglots}
