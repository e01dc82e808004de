"""Torch files that lie, to the native command: one line that names the file and the place, and nothing is executed."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest
from cli_command import Run


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def tensor(offset: int, size: int, stride: int) -> bytes:
    """One dimension of the six floats in data/0."""
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + number(6) + b"tQ"
    hooks = b"ccollections\nOrderedDict\n)R"
    shape = number(size) + b"\x85" + number(stride) + b"\x85"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(offset) + shape + b"\x89" + hooks + b"tR"


def write(path: Path, body: bytes, storages: int = 1) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("m/data.pkl", b"\x80\x02" + body + b".")
        archive.writestr("m/byteorder", b"little")
        for key in range(storages):
            archive.writestr(f"m/data/{key}", b"x" * 24)
        archive.writestr("m/version", b"3\n")


BAD = {
    "long": (
        tensor(0, 7, 1),
        f"data.pkl: byte {len(tensor(0, 7, 1)) + 1}: "
        'a tensor of [7] with offset 0 needs element 6 of storage "0", which has 6',
    ),
    "offset": (
        tensor(-1, 1, 1),
        f"data.pkl: byte {len(tensor(0, 1, 1)) + 1}: the offset of a tensor is -1, less than 0",
    ),
    "stride": (tensor(5, 2, -1), f"data.pkl: byte {len(tensor(0, 1, 1)) + 1}: a stride is -1, less than 0"),
    "length": (b"X\xff\xff\xff\x7fabc", "data.pkl: byte 2: the pickle ends before it is complete"),
    "memo": (b"Nr\xfe\xff\xff\xff", "data.pkl: byte 3: memo entry 4294967294 in a pickle of 9 bytes"),
    "opcode": (b"\xff", "data.pkl: byte 2: 0xff is no opcode"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("reader", ["ls", "verify", "convert"])
def test_pickles_that_lie_are_refused_by_name_and_place(fails: Run, tmp_path: Path, kind: str, reader: str) -> None:
    body, message = BAD[kind]
    write(tmp_path / "m.pt", body)
    arguments = ["m.pt", "out.safetensors"] if reader == "convert" else ["m.pt"]
    assert fails(reader, *arguments).stderr == f"penstock: m.pt: {message}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.pt"]


GADGETS = {
    "os.system": b"cos\nsystem\n" + text("touch executed") + b"\x85R",
    "collections.OrderedDict": b"ccollections\nOrderedDict\n)R)R",  # what calling its result would give
}


@pytest.mark.parametrize("name", GADGETS)
def test_gadgets_are_named_and_never_called(run: Run, tmp_path: Path, name: str) -> None:
    write(tmp_path / "m.pt", GADGETS[name])
    for arguments in (["ls", "m.pt"], ["verify", "m.pt"], ["convert", "m.pt", "out.safetensors"]):
        result = run(*arguments)
        assert result.returncode == 0
        assert name in result.stdout + result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.pt", "out.safetensors"]


def test_a_storage_without_a_record_is_named(fails: Run, tmp_path: Path) -> None:
    write(tmp_path / "m.pt", tensor(0, 6, 1), storages=0)
    assert fails("ls", "m.pt").stderr == 'penstock: m.pt: storage "0" has no record\n'


def test_a_flipped_bit_names_its_record(run: Run, fails: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write(path, tensor(0, 6, 1))
    assert run("ls", "m.pt").returncode == 0
    data = path.read_bytes()
    path.write_bytes(data.replace(b"little", b"littlf", 1))
    assert fails("ls", "m.pt").stderr.startswith('penstock: m.pt: record "m/byteorder" is corrupt: its CRC-32 is ')
    path.write_bytes(data.replace(b"x" * 24, b"x" * 23 + b"y"))
    assert run("ls", "m.pt").returncode == 0
    result = run("verify", "m.pt")
    assert result.returncode == 1
    assert 'record "m/data/0" is corrupt: its CRC-32 is ' in result.stdout + result.stderr
    assert "checksums  bad  not every record has the bytes that were saved" in result.stdout
