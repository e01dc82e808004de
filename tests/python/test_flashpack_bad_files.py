"""FlashPack files that are not what they should be."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helpers
import penstock
import penstock.flashpack as flashpack
import pytest
from torch import nn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.flashpack"


def record(**changes: Any) -> dict[str, Any]:
    return {"name": "weight", "shape": [1, 2], "offset": 0, "length": 2, **changes}


def block(**changes: Any) -> dict[str, Any]:
    return {"dtype": "float32", "offset_bytes": 0, "length_bytes": 8, "length_elems": 2, **changes}


def v3(**changes: Any) -> dict[str, Any]:
    footer = {
        "format": "flashpack_v3",
        "target_dtype": "float32",
        "align_bytes": 0,
        "total_elems": 2,
        "index": [record()],
    }
    return {**footer, **changes}


def v4(**changes: Any) -> dict[str, Any]:
    footer = {"format": "flashpack_v4", "align_bytes": 0, "total_payload_bytes": 8, "total_elems": 2}
    return {**footer, "macroblocks": [block()], "index": [record(macroblock=0)], **changes}


def without(footer: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in footer.items() if name != key}


def encoded(footer: Any, payload: bytes = bytes(8), length: int | None = None) -> bytes:
    text = footer if isinstance(footer, bytes) else json.dumps(footer).encode()
    return payload + text + struct.pack("<Q", len(text) if length is None else length) + b"FLASHPK\0"


GOOD = {
    "v3": encoded(v3()),
    "v4": encoded(v4()),
    "v4 without macroblock numbers": encoded(v4(index=[record()])),
    "another name of the type": encoded(v3(target_dtype="float")),
}
BROKEN = {
    "empty": b"",
    "too short": b"FLASHPK\0",
    "wrong magic": encoded(v3())[:-1] + b"x",
    "cut off": encoded(v3())[:-5],
    "cut off at the front": encoded(v3())[5:],
    "footer longer than the file": encoded(v3(), length=10**6),
    "footer length near 2**64": encoded(v3(), length=2**64 - 1),
    "footer length near 2**64 that wraps": encoded(v3(), length=2**64 - 16),
    "not json": encoded(b'{"format": '),
    "json array": encoded(b"[1]"),
    "json string": encoded(b'"FLASHPK"'),
    "bad utf-8": encoded(json.dumps(v3()).encode().replace(b"weight", b"\xff\xfe")),
    "unknown format": encoded(v3(format="flashpack_v5")),
    "no format": encoded(without(v3(), "format")),
    "no type": encoded(without(v3(), "target_dtype")),
    "no index": encoded(without(v3(), "index")),
    "no total": encoded(without(v3(), "total_elems")),
    "unknown type": encoded(v3(target_dtype="float33")),
    "not a type": encoded(v3(target_dtype="nn")),
    "4-bit type": encoded(v3(target_dtype="float4_e2m1fn_x2")),
    "quantised type": encoded(v3(target_dtype="qint8")),
    "type that is not text": encoded(v3(target_dtype=3)),
    "index that is an object": encoded(v3(index={})),
    "record that is a list": encoded(v3(index=[["weight", [1, 2], 0, 2]])),
    "record without a shape": encoded(v3(index=[without(record(), "shape")])),
    "negative offset": encoded(v3(index=[record(offset=-1)])),
    "offset beyond its block": encoded(v3(index=[record(offset=1)])),
    "offset near 2**64": encoded(v3(index=[record(offset=2**64 - 1)])),
    "offset that is a fraction": encoded(v3(index=[record(offset=0.5)])),
    "length that disagrees with the shape": encoded(v3(index=[record(length=1)])),
    "negative dimensions": encoded(v3(index=[record(shape=[-1, -2])])),
    "shape that overflows": encoded(v3(index=[record(shape=[2**32, 2**32, 2])])),
    "total beyond the file": encoded(v3(total_elems=2**40)),
    "total that overflows": encoded(v3(total_elems=2**62 + 2)),
    "negative alignment": encoded(v3(align_bytes=-1)),
    "name that is a number": encoded(v3(index=[record(name=3)])),
    "duplicate name": encoded(
        v3(index=[record(shape=[1], length=1), record(shape=[1], length=1, offset=1)]),
    ),
    "overlapping tensors": encoded(v3(index=[record(), record(name="other")])),
    "compressed": encoded(v4(macroblocks=[block(fpz={"level": 3})])),
    "block beyond the file": encoded(v4(macroblocks=[block(offset_bytes=8)])),
    "block sizes that disagree": encoded(v4(macroblocks=[block(length_elems=3)])),
    "negative block offset": encoded(v4(macroblocks=[block(offset_bytes=-8)])),
    "no blocks": encoded(v4(macroblocks=[])),
    "unknown macroblock": encoded(v4(index=[record(macroblock=1)])),
    "negative macroblock": encoded(v4(index=[record(macroblock=-1)])),
    "overlapping blocks": encoded(v4(macroblocks=[block(), block()], index=[record(), record(name="b", macroblock=1)])),
    "safetensors": helpers.header_bytes(helpers.one_tensor("F32", [2], 8)) + bytes(8),
}
READERS: dict[str, Callable[[Path], Any]] = {
    "metadata": flashpack.get_flashpack_file_metadata,
    "read": flashpack.read_flashpack_file,
    "revert": flashpack.revert_from_file,
    "assign": lambda path: flashpack.assign_from_file(nn.Linear(2, 1, bias=False), path),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_file_made_by_hand_is_read(path: Path, name: str) -> None:
    path.write_bytes(GOOD[name])
    for read in READERS.values():
        read(path)
    assert flashpack.is_flashpack_file(path)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_in_one_line_and_nothing_changes(path: Path, name: str, no_leaks: None) -> None:
    path.write_bytes(BROKEN[name])
    model = nn.Linear(2, 1, bias=False)
    weight, before = model.weight, model.weight.tolist()
    for read in (*READERS.values(), lambda path: flashpack.assign_from_file(model, path, strict=False)):
        with pytest.raises(penstock.FormatError) as caught:
            read(path)
        assert isinstance(caught.value, ValueError)
        assert str(path) in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
    assert not flashpack.is_flashpack_file(path)
    assert model.weight is weight
    assert weight.tolist() == before


def test_a_compressed_file_is_refused_by_name(path: Path) -> None:
    path.write_bytes(BROKEN["compressed"])
    with pytest.raises(ValueError, match="fpz"):
        flashpack.read_flashpack_file(path)


def test_a_safetensors_file_is_called_what_it_is(path: Path) -> None:
    path.write_bytes(BROKEN["safetensors"])
    with pytest.raises(ValueError, match="is a safetensors file, not a FlashPack one"):
        flashpack.revert_from_file(path)


def test_a_claimed_size_is_not_allocated(path: Path) -> None:
    path.write_bytes(encoded(v3(total_elems=2**40, index=[record(shape=[2**40], length=2**40)])))
    script = """
        import resource, sys, torch, penstock.flashpack as flashpack
        resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))
        try:
            flashpack.read_flashpack_file(sys.argv[1])
        except flashpack.deserialization.Error as error:
            print(type(error).__name__)
    """
    assert helpers.run_python(script, str(path)).stdout == "FormatError\n"


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path, no_leaks: None) -> None:
    for read in READERS.values():
        with pytest.raises(FileNotFoundError, match="nowhere"):
            read(tmp_path / "nowhere.flashpack")
        with pytest.raises(penstock.Error, match=str(tmp_path)):
            read(tmp_path)
    assert not flashpack.is_flashpack_file(tmp_path / "nowhere.flashpack")
    assert not flashpack.is_flashpack_file(tmp_path)
    assert not flashpack.is_flashpack_file(None)  # type: ignore[arg-type]
