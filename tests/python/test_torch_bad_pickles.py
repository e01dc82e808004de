"""Torch files that lie: each is refused by every way in, in one line that names the file and the place."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
import penstock.fastpersist.serialization
import pytest
import torch
from torch_pickles import (
    LEGACY_START,
    ORDERED_DICT,
    group,
    name,
    number,
    storage,
    tensor,
    text,
    write_legacy,
    write_zip,
)

FLOATS = storage("FloatStorage", "0", 6)
SIX = b"x" * 24
MOST = 2**63 - 1
KEEP = ' (opaque="keep" loads the rest)'
NEEDLESS = " is not one that a checkpoint's data needs; it was not imported" + KEEP


def open_all_ways(path: Path) -> list[Callable[[], Any]]:
    return [
        lambda: penstock.open(path),
        lambda: penstock.load(path),
        lambda: list(penstock.stream(path)),
        lambda: penstock.verify(path),
        lambda: penstock.inspect(path),
        lambda: penstock.convert(path, path.with_suffix(".safetensors")),
        lambda: penstock.fastpersist.serialization.load(path),
    ]


def refuse(path: Path, message: str, kind: type[penstock.Error] = penstock.FormatError) -> None:
    """By penstock's own functions; the drop-in hands to torch what may be sound, and nothing else."""
    sound = kind is penstock.UnsupportedFormatError
    *own, drop_in = open_all_ways(path)
    for action in own if sound else [*own, drop_in]:
        with pytest.raises(penstock.FormatError) as caught:
            action()
        assert type(caught.value) is (penstock.errors.DamagedCheckpointError if action is drop_in else kind)
        assert str(caught.value) == f"{path}: {message}"
    assert not path.with_suffix(".safetensors").exists()


def refuse_tree(path: Path, message: str, opaque: list[tuple[str, str]]) -> None:
    """As a tree alone: whoever looks for tensors gets them, and is told what else there is."""
    with pytest.raises(penstock.UnsupportedFormatError) as caught:
        penstock.load(path)
    assert str(caught.value) == f"{path}: {message}"
    assert penstock.open(path).opaque == opaque
    assert penstock.inspect(path).opaque == opaque
    assert penstock.verify(path).opaque == opaque


BAD_TENSORS = {
    "more elements than its storage": (
        tensor(FLOATS, 0, (7,), (1,)),
        'a tensor of [7] with offset 0 needs element 6 of storage "0", which has 6',
    ),
    "an offset that pushes it out": (
        tensor(FLOATS, 1, (6,), (1,)),
        'a tensor of [6] with offset 1 needs element 6 of storage "0", which has 6',
    ),
    "strides that reach out": (
        tensor(FLOATS, 0, (2, 3), (4, 1)),
        'a tensor of [2, 3] with offset 0 needs element 6 of storage "0", which has 6',
    ),
    "a type wider than its storage": (
        tensor(storage("UntypedStorage", "0", 24), 0, (4,), (1,), name("torch", "float64")),
        'a tensor of [4] with offset 0 needs element 3 of storage "0", which has 3',
    ),
    "a negative offset": (tensor(FLOATS, -1, (1,), (1,)), "the offset of a tensor is -1, less than 0"),
    "a negative stride": (tensor(FLOATS, 5, (2,), (-1,)), "a stride is -1, less than 0"),
    "a negative dimension": (tensor(FLOATS, 0, (-1,), (1,)), "a dimension is -1, less than 0"),
    "strides beyond 64 bits": (tensor(FLOATS, 0, (3, 3), (MOST, MOST)), "a tensor's strides reach beyond 2^64"),
    "more dimensions than torch has": (
        tensor(FLOATS, 0, (1,) * 65, (1,) * 65),
        "a tensor with 65 dimensions, more than 64",
    ),
    "no storage": (tensor(b"N", 0, (1,), (1,)), "a tensor without a storage"),
    "a storage of negative size": (storage("FloatStorage", "0", -1), "the size of a storage is -1, less than 0"),
    "a storage beyond 64 bits": (storage("DoubleStorage", "0", 2**62), 'storage "0" is too large'),
}


@pytest.mark.parametrize("kind", BAD_TENSORS)
def test_tensors_that_claim_too_much_are_refused_at_their_byte(kind: str, tmp_path: Path) -> None:
    body, message = BAD_TENSORS[kind]
    write_zip(tmp_path / "m.pt", body, SIX)
    refuse(tmp_path / "m.pt", f"data.pkl: byte {len(body) + 1}: {message}")


def test_legacy_files_say_where_too(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    floats = storage("FloatStorage", "11", 6, legacy=True)
    data = struct.pack("<q", 6) + SIX
    body = tensor(floats, 0, (7,), (1,))
    write_legacy(path, body, ["11"], data)
    refuse(
        path,
        f"the object: byte {len(LEGACY_START) + len(body) + 1}: "
        'a tensor of [7] with offset 0 needs element 6 of storage "11", which has 6',
    )
    good = tensor(floats, 0, (6,), (1,))
    write_legacy(path, good, [], b"")
    refuse(path, 'storage "11" has no bytes')
    write_legacy(path, good, ["11", "12"], data + data)
    refuse(path, 'it lists the storage "12", which no tensor has')
    write_legacy(path, good, ["11"], struct.pack("<q", 5) + SIX)
    at = path.stat().st_size - 32
    refuse(path, f'byte {at}: storage "11" has 5 elements, expected 6')
    write_legacy(path, good, ["11"], data[:-1])
    refuse(path, f'truncated: storage "11" at byte {at} takes 32 bytes, but 31 are left')
    write_legacy(path, good, ["11"], data + b"x")
    refuse(path, f"byte {at + 32}: 1 bytes follow the last storage")


def test_records_that_are_not_what_the_pickle_says_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    body = tensor(FLOATS, 0, (6,), (1,))
    # A byte too few for the last of its elements.
    write_zip(path, body, SIX[:-1])
    refuse(path, 'record "m/data/0" has 23 bytes, but its storage takes 24')
    write_zip(path, body, SIX + b"x")
    refuse(path, 'record "m/data/0" has 25 bytes, but its storage takes 24')
    write_zip(path, body)
    refuse(path, 'storage "0" has no record')
    write_zip(path, tensor(storage("FloatStorage", "0", 2**40), 0, (1,), (1,)), SIX)
    refuse(path, 'record "m/data/0" has 24 bytes, but its storage takes 4398046511104')


def test_lengths_beyond_the_file_are_refused_before_they_are_believed(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    for claim in (
        b"X" + struct.pack("<I", 2**31 - 1),
        b"T" + struct.pack("<I", 2**32 - 1),
        b"B" + struct.pack("<I", 2**31),
        b"\x8d" + struct.pack("<Q", 2**64 - 1),
        b"\x8e" + struct.pack("<Q", 2**31),
        b"\x96" + struct.pack("<Q", 2**62),
        b"\x8b" + struct.pack("<I", 2**31 - 1),
    ):
        write_zip(path, b"]" + claim)
        refuse(path, "data.pkl: byte 3: the pickle ends before it is complete")


def test_memo_bombs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write_zip(path, b"Nr" + struct.pack("<I", 2**32 - 2))
    refuse(path, "data.pkl: byte 3: memo entry 4294967294 in a pickle of 9 bytes")
    write_zip(path, b"j" + struct.pack("<I", 2**31))
    refuse(path, "data.pkl: byte 2: memo entry 2147483648 was never set")
    # Ten lists, each of ten times the one before: ten billion tensors in a few bytes.
    body = b"](" + tensor(FLOATS, 0, (1,), (1,)) + b"eq\x000"
    for level in range(1, 11):
        body += b"](" + bytes([ord("h"), level - 1]) * 10 + b"eq" + bytes([level]) + b"0"
    write_zip(path, body + b"h\x0a", SIX)
    for action in (penstock.open, penstock.verify, penstock.inspect):
        with pytest.raises(penstock.FormatError) as caught:
            action(path)
        assert re.fullmatch(r".*: data\.pkl: 1 tensors are repeated more than 20\d\d\d times", str(caught.value))


def test_values_that_contain_themselves_or_nest_too_deep_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    for body in (b"}q\x00" + text("k") + b"h\x00s", b"](" * 2000 + b"N" + b"e" * 2000):
        write_zip(path, body)
        with pytest.raises(penstock.FormatError, match="^.*: data.pkl: values are nested deeper than 1000$"):
            penstock.open(path)
    with pytest.raises(penstock.FormatError, match=r"^.*: data.pkl: byte \d+: values are nested deeper than 1000$"):
        penstock.load(path)


def test_chains_of_calls_are_refused_where_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    at = len(ORDERED_DICT) + 3
    needless = "a call of what is not a global is used in a way that data does not need" + KEEP
    write_zip(path, ORDERED_DICT + b")R")
    refuse_tree(path, f"data.pkl: byte {at}: {needless}", [("", "collections.OrderedDict")])
    write_zip(path, text("os.system") + b")R")
    refuse_tree(path, f"data.pkl: byte 17: {needless}", [("", "an object without a name")])
    write_zip(path, name("collections", "OrderedDict") + b"]R")
    refuse(path, "data.pkl: byte 28: a call whose arguments are not a tuple")


@pytest.mark.parametrize(
    ("module", "attribute"),
    [("os", "system"), ("builtins", "eval"), ("subprocess", "Popen"), ("torch", "load"), ("torch._utils", "x")],
)
def test_gadgets_are_of_a_kind_of_their_own(module: str, attribute: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    called = f"{module}.{attribute}"
    write_zip(path, b"]" + name(module, attribute) + text("true") + b"\x85Ra")
    refuse_tree(path, f'data.pkl: byte 3: the global "{called}"{NEEDLESS}', [("0", called)])
    write_legacy(path, name(module, attribute), [], b"")
    at = len(LEGACY_START) + 2
    refuse_tree(path, f'the object: byte {at}: the global "{called}"{NEEDLESS}', [("", called)])


def test_opcodes_of_programs_are_sound_and_bytes_that_are_none_are_not(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    needless = ", which data does not need"
    write_zip(path, b"(ios\nsystem\n")
    refuse(
        path,
        f"data.pkl: byte 3: an opcode that makes an instance (0x69){needless}",
        penstock.UnsupportedFormatError,
    )
    write_zip(path, b"\x97")
    refuse(
        path,
        f"data.pkl: byte 2: an opcode for buffers outside of the pickle (0x97){needless}",
        penstock.UnsupportedFormatError,
    )
    write_zip(path, b"\xff")
    refuse(path, "data.pkl: byte 2: 0xff is no opcode")


def test_calls_that_make_more_than_data_say_where(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    body = name("builtins", "bytearray") + number(2**40) + b"\x85R"
    write_zip(path, body)
    with pytest.raises(penstock.UnsupportedFormatError) as caught:
        penstock.load(path)
    assert str(caught.value) == (
        f'{path}: data.pkl: byte {len(body) + 1}: "builtins.bytearray" is used in a way that data does not need{KEEP}'
    )


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"}]N" + b"s", "unhashable type: 'list'"),
        (name("builtins", "set") + b"](]e\x85R", "unhashable type: 'list'"),
        (name("torch", "device") + text("nonsense") + b"\x85R", "nonsense"),
        (name("torch", "Size") + group(text("a")) + b"\x85R", ""),
    ],
)
def test_what_python_does_not_take_is_an_error_of_the_file(body: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write_zip(path, body)
    with pytest.raises(penstock.FormatError) as caught:
        penstock.load(path)
    assert str(caught.value).startswith(f"{path}: data.pkl: byte ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


# Python hashes an integer to its remainder by this number.
ONE_HASH = 2**61 - 1


def colliding(count: int) -> list[bytes]:
    return [b"\x8a\x0a" + (7 + i * ONE_HASH).to_bytes(10, "little", signed=True) for i in range(count)]


@pytest.mark.parametrize("kind", ["dict", "OrderedDict", "set"])
def test_keys_that_all_have_one_hash_are_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"

    def write(keys: list[bytes]) -> None:
        if kind == "set":
            write_zip(path, name("builtins", "set") + b"](" + b"".join(keys) + b"e\x85R")
        else:
            empty = b"}" if kind == "dict" else ORDERED_DICT
            write_zip(path, empty + b"(" + b"".join(key + b"N" for key in keys) + b"u")

    write(colliding(1000) + [number(i) for i in range(5000, 10000)])
    assert len(penstock.load(path)) == 6000
    write(colliding(1001))
    message = r"m\.pt: data\.pkl: byte \d+: more than 1000 keys have the same hash"
    with pytest.raises(penstock.FormatError, match=message):
        penstock.load(path)


def test_an_object_with_a_strange_state_says_where(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write_zip(path, ORDERED_DICT + b"K\x01b")
    with pytest.raises(
        penstock.UnsupportedFormatError, match=r"m\.pt: data\.pkl: byte \d+: an object whose state is not"
    ):
        penstock.load(path)


SMALL_RECORDS = ["byteorder", ".format_version", ".storage_alignment", "version", ".data/serialization_id", "data.pkl"]


@pytest.mark.parametrize("record", SMALL_RECORDS)
def test_a_flipped_bit_in_a_small_record_is_met_when_the_file_is_opened(record: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save({"w": torch.arange(3.0)}, path)
    data = bytearray(path.read_bytes())
    header = data.find(f"m/{record}".encode()) - 30
    name_length, extra_length = struct.unpack_from("<HH", data, header + 26)
    start = header + 30 + name_length + extra_length
    nbytes = data.find(b"PK\x07\x08", start) - start
    stored = zlib.crc32(data[start : start + nbytes])
    data[start] ^= 4
    found = zlib.crc32(data[start : start + nbytes])
    path.write_bytes(data)
    refuse(path, f'record "m/{record}" is corrupt: its CRC-32 is {found:08x}, the file says {stored:08x}')


def test_every_flipped_bit_outside_of_the_storages_is_damage(tmp_path: Path) -> None:
    """None is taken for a program, or for something that torch might read."""
    path = tmp_path / "m.pt"
    value = torch.arange(3.0)
    torch.save({"w": value}, path)
    whole = path.read_bytes()
    begin = whole.find(struct.pack("<3f", 0, 1, 2))
    for bit in range(0, len(whole) * 8, 3):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(data)
        in_storage = begin <= bit // 8 < begin + 12
        kind, loaded = load_or_refuse(path)
        assert kind in ((None,) if in_storage else (None, penstock.errors.DamagedCheckpointError)), bit
        assert in_storage or loaded is None or torch.equal(loaded["w"], value)


def load_or_refuse(path: Path) -> tuple[type[penstock.Error] | None, Any]:
    try:
        return None, penstock.fastpersist.serialization.load(path)
    except penstock.Error as error:
        return type(error), None
