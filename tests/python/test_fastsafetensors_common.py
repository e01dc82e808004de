"""Headers as SafeTensorsMetadata and TensorFrame tell them, and small questions about the machine."""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
from penstock.fastsafetensors import SafeTensorsMetadata, SingleGroup, TensorFrame, get_device_numa_node
from penstock.fastsafetensors.common import (
    get_fs_type,
    is_debug,
    is_odirect_enabled,
    resolve_runtime_lib_name,
)
from penstock.fastsafetensors.cpp import cpu_free, cpu_malloc, gds_device_buffer, read_buffer
from penstock.fastsafetensors.frameworks import get_framework_op
from penstock.fastsafetensors.st_types import DTYPE_SIZES, Device, DeviceType, DType
from safetensors.torch import save_file

TENSORS = {"a": torch.arange(20.0).reshape(4, 5), "b": torch.ones(3, dtype=torch.int16), "c": torch.zeros(2, 0)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.safetensors"
    save_file(TENSORS, path, metadata={"who": "me"})
    return path


def read(path: Path) -> SafeTensorsMetadata:
    return SafeTensorsMetadata.from_file(str(path), get_framework_op("pytorch"))


def test_a_header_says_what_the_file_holds(file: Path) -> None:
    found = read(file)
    assert found.metadata == {"who": "me"}
    assert (found.src, found.size_bytes) == (str(file), file.stat().st_size)
    assert {name: (frame.dtype, frame.shape) for name, frame in found.tensors.items()} == {
        "a": (DType.F32, [4, 5]),
        "b": (DType.I16, [3]),
        "c": (DType.F32, [2, 0]),
    }
    start, end = found.tensors["a"].data_offsets
    data = file.read_bytes()[found.header_length :]
    assert data[start:end] == helpers.bits_of(TENSORS["a"])


def test_a_header_is_read_from_a_descriptor_and_from_memory_too(file: Path) -> None:
    framework = get_framework_op("pytorch")
    with file.open("rb") as opened:
        opened.seek(5)
        from_fd = SafeTensorsMetadata.from_fd(opened.fileno(), str(file), framework, keep_orig_dict=True)
        assert os.lseek(opened.fileno(), 0, os.SEEK_CUR) == 5
    data = file.read_bytes()
    memory = ctypes.create_string_buffer(data, len(data))
    from_memory = SafeTensorsMetadata.from_buffer(ctypes.addressof(memory), len(data), "memory", framework)
    assert from_fd.tensors == from_memory.tensors == read(file).tensors
    assert from_fd.ser["b"]["dtype"] == "I16"


def test_tensors_are_made_over_memory_of_the_callers(file: Path) -> None:
    found = read(file)
    data = bytearray(file.read_bytes()[found.header_length :])
    memory = (ctypes.c_char * len(data)).from_buffer(data)
    buffer = gds_device_buffer(ctypes.addressof(memory), len(data), False)
    tensors = found.get_tensors(buffer, Device(), found.header_length)
    helpers.assert_same_tensors({name: tensor.get_raw() for name, tensor in tensors.items()}, TENSORS)
    converted = found.get_tensors(buffer, Device(), found.header_length, DType.F64)
    assert converted["b"].get_raw().dtype is torch.float64
    short = gds_device_buffer(ctypes.addressof(memory), 8, False)
    with pytest.raises(ValueError, match="its bytes are not in the memory that was given"):
        found.get_tensors(short, Device(), found.header_length)


BROKEN: list[tuple[Any, bytes, str]] = [
    (helpers.one_tensor("F32", [2], 8), b"1234", "is cut off"),
    (helpers.one_tensor("F32", [2], 8), b"123456789", "has bytes after its last tensor"),
    (helpers.one_tensor("F99", [2], 8), bytes(8), "unknown dtype 'F99'"),
    (helpers.one_tensor("F32", [-2], 8), bytes(8), "nonnegative"),
    (helpers.one_tensor("F32", [3], 8), bytes(8), "x"),
    ([], b"", "is not an object"),
    ({"__metadata__": {"a": 1}}, b"", "__metadata__ is not an object of strings"),
]


@pytest.mark.parametrize(("header", "data", "said"), BROKEN, ids=[said for _, _, said in BROKEN])
def test_a_file_that_breaks_the_rules_is_refused_by_name(tmp_path: Path, header: Any, data: bytes, said: str) -> None:
    path = helpers.write_raw(tmp_path / "broken.safetensors", header, data)
    with pytest.raises(ValueError, match=said) as caught:
        read(path)
    assert "broken.safetensors" in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"1234567", (2**40).to_bytes(8, "little") + b"{}", b"\xff" * 100])
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(ValueError, match="header"):
        read(tmp_path / "file")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        read(Path("absent"))


def test_parts_of_files_are_merged_where_the_gap_is_small(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    save_file({f"{index}": torch.zeros(25) for index in range(5)}, path)  # 100 bytes each
    found = read(path)
    start = found.header_length

    def ranges(names: str, gap: int) -> list[tuple[int, int]]:
        return [(a - start, b - start) for a, b in found.select_byte_ranges(lambda name: name in names, gap)]

    assert ranges("01234", 0) == [(0, 500)]
    assert ranges("024", 99) == [(0, 100), (200, 300), (400, 500)]
    assert ranges("024", 100) == [(0, 500)]
    assert ranges("", 4096) == []


def test_an_index_of_a_frame_picks_a_part() -> None:
    frame = TensorFrame.from_buffer({"dtype": "F32", "shape": [4, 6], "data_offsets": [0, 96]})
    part = frame[1:3, 2]
    assert (part.shape, part.offsets, part.strides, part.sliced) == ([2, 1], [1, 2], [6, 1], True)
    assert (frame[::2].shape, frame[::2].strides) == ([2, 6], [12, 1])
    assert frame[-1].offsets == [3, 0]
    for index in (4, (0, 0, 0), "x"):
        with pytest.raises(IndexError):
            frame[index]  # type: ignore[index]


def test_the_filesystem_of_a_path_is_the_deepest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("a / ext4 rw 0 0\nb /data nfs4 rw 0 0\nc /data/fast\\040disk xfs rw 0 0\nbroken\n")
    assert get_fs_type("/data/x", str(mounts)) == "nfs4"
    assert get_fs_type("/data/fast disk/x", str(mounts)) == "xfs"
    assert get_fs_type("/database", str(mounts)) == "ext4"
    assert get_fs_type("/x", str(tmp_path / "absent")) == ""


def test_the_environment_decides_on_direct_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTSAFETENSORS_ODIRECT", "1")
    assert is_odirect_enabled(str(tmp_path))
    monkeypatch.setenv("FASTSAFETENSORS_ODIRECT", "0")
    assert not is_odirect_enabled(str(tmp_path))


def test_small_questions_have_answers_without_a_gpu() -> None:
    assert get_device_numa_node(None) is None
    assert get_device_numa_node(10**6) is None
    assert resolve_runtime_lib_name() == ""
    assert (SingleGroup().size(), SingleGroup().rank()) == (1, 0)
    logger = logging.getLogger("of this test")
    logger.setLevel(logging.INFO)
    assert not is_debug(logger)


def test_memory_by_its_address_can_be_moved_and_read() -> None:
    address = cpu_malloc(100)
    ctypes.memmove(address, b"0123456789", 10)
    buffer = gds_device_buffer(address, 100, False)
    assert buffer.memmove(2, 0, buffer, 8) == 0
    assert read_buffer(address, 10) == b"0101234567"
    assert buffer.memmove(96, 0, buffer, 8) == -1
    cpu_free(address)


def test_devices_and_types_have_names() -> None:
    assert Device.from_str("cuda:1") == Device(DeviceType.CUDA, 1)
    assert Device.from_str("cpu").as_str() == "cpu"
    for name in ("nothing", "cuda:x"):
        with pytest.raises(ValueError, match=name.partition(":")[2] or name):
            Device.from_str(name)
    assert (DTYPE_SIZES[DType.BF16], DTYPE_SIZES[DType.F4], DTYPE_SIZES[DType.F8_E4M3]) == (2, 0.5, 1)
