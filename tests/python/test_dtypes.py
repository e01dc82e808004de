"""Every element type, bit for bit, in both frameworks and against the reference."""

from __future__ import annotations

from pathlib import Path

import helpers
import ml_dtypes
import numpy as np
import penstock
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from penstock._dtypes import BITS, TORCH_NAMES

SHAPE = [3, 8]
NO_TORCH_DTYPE = ("F6_E2M3", "F6_E3M2")
SUB_BYTE = ("F4", *NO_TORCH_DTYPE)


@pytest.fixture(params=sorted(helpers.BITS))
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def data(dtype: str) -> bytes:
    count = 24 * helpers.BITS[dtype] // 8
    return bytes(i % 2 for i in range(count)) if dtype == "BOOL" else helpers.random_bytes(count)


@pytest.fixture
def raw(path: Path, dtype: str, data: bytes) -> Path:
    return helpers.write_raw(path, helpers.one_tensor(dtype, SHAPE, len(data)), data)


def test_the_tables_cover_every_type_of_the_format() -> None:
    other_formats = {"C32": 32, "C128": 128}
    assert helpers.BITS | other_formats == BITS
    assert set(helpers.BITS) - set(TORCH_NAMES) == set(NO_TORCH_DTYPE)


def test_a_torch_load_has_the_bits_of_the_file(raw: Path, dtype: str, data: bytes) -> None:
    tensor = penstock.load(raw, framework="torch")["x"]
    if dtype in NO_TORCH_DTYPE:
        assert isinstance(tensor, penstock.PackedTensor)
        assert (tensor.dtype, tensor.shape, tensor.nbytes) == (dtype, tuple(SHAPE), len(data))
        assert helpers.bits_of(tensor.data) == data
        return
    assert tensor.dtype == getattr(torch, TORCH_NAMES[dtype])
    assert list(tensor.shape) == ([3, 4] if dtype == "F4" else SHAPE)
    assert helpers.bits_of(tensor) == data


def test_a_torch_load_equals_that_of_the_reference(raw: Path, dtype: str) -> None:
    if dtype in NO_TORCH_DTYPE:
        with pytest.raises(safetensors.SafetensorError):  # the reference can't read it; when it can, compare
            safetensors.torch.load_file(raw)
        return
    assert helpers.same(penstock.load(raw)["x"], safetensors.torch.load_file(raw)["x"])


def test_a_numpy_load_has_the_bits_of_the_file(raw: Path, dtype: str, data: bytes) -> None:
    array = penstock.load(raw, framework="numpy")["x"]
    if dtype in SUB_BYTE:
        assert isinstance(array, penstock.PackedTensor)
        array = array.data
    else:
        expected = getattr(ml_dtypes, TORCH_NAMES[dtype], None) or np.dtype(TORCH_NAMES[dtype])
        assert array.dtype == expected
        assert array.shape == tuple(SHAPE)
    assert array.flags.writeable
    assert array.tobytes() == data


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_a_saved_load_is_the_same_file_again(
    raw: Path, tmp_path: Path, dtype: str, data: bytes, framework: str
) -> None:
    copy = tmp_path / "copy.safetensors"
    penstock.save(penstock.load(raw, framework=framework), copy)
    with penstock.open(copy) as reader:
        assert (reader["x"].dtype, list(reader["x"].shape)) == (dtype, SHAPE)
    assert copy.read_bytes().endswith(data)


def test_the_reference_reads_what_was_saved(raw: Path, tmp_path: Path, dtype: str) -> None:
    if dtype in NO_TORCH_DTYPE:
        pytest.skip(f"the reference has no {dtype}")
    tensors = safetensors.torch.load_file(raw)
    copy = tmp_path / "copy.safetensors"
    penstock.save(tensors, copy)
    assert helpers.same(safetensors.torch.load_file(copy)["x"], tensors["x"])


def test_stream_and_open_agree_with_load(raw: Path) -> None:
    whole = penstock.load(raw)["x"]
    streamed = dict(penstock.stream(raw))["x"]
    lazy = penstock.open(raw)["x"].load()
    for tensor in (streamed, lazy):
        if isinstance(whole, penstock.PackedTensor):
            assert tensor._replace(data=None) == whole._replace(data=None)
            assert helpers.bits_of(tensor.data) == helpers.bits_of(whole.data)
        else:
            assert helpers.same(tensor, whole)


def test_the_reference_and_numpy_agree_on_its_types(path: Path) -> None:
    arrays = {
        name: np.arange(6).astype(name).reshape(2, 3) for name in ("float16", "float64", "int8", "uint32", "complex64")
    }
    safetensors.numpy.save_file(arrays, path)
    helpers.assert_same_tensors(penstock.load(path, framework="numpy"), arrays)
    penstock.save(arrays, path)
    helpers.assert_same_tensors(safetensors.numpy.load_file(path), arrays)


def test_an_odd_last_dimension_of_f4_comes_packed(path: Path) -> None:
    helpers.write_raw(path, helpers.one_tensor("F4", [2, 3], 3), b"\x12\x34\x56")
    tensor = penstock.load(path)["x"]
    assert isinstance(tensor, penstock.PackedTensor)
    assert (tensor.dtype, tensor.shape) == ("F4", (2, 3))
    assert helpers.bits_of(tensor.data) == b"\x12\x34\x56"


def test_a_type_that_no_file_holds_is_refused(path: Path) -> None:
    with pytest.raises(penstock.UnsupportedError, match=r'^tensor "z": safetensors has no C128$'):
        penstock.save({"z": torch.zeros(2, dtype=torch.complex128)}, path)
    with pytest.raises(penstock.UnsupportedError, match=r"^z: arrays of <U1 can't be saved$"):
        penstock.save({"z": np.array(["a"])}, path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("fp32", torch.float32),
        ("float", torch.float32),
        ("FP16", torch.float16),
        ("half", torch.float16),
        ("bf16", torch.bfloat16),
        ("double", torch.float64),
        ("fp64", torch.float64),
        ("fp8", torch.float8_e4m3fn),
        ("fp8_e5m2", torch.float8_e5m2),
        ("torch.float16", torch.float16),
    ],
)
def test_a_dtype_is_what_people_call_it(path: Path, tmp_path: Path, given: str, expected: torch.dtype) -> None:
    penstock.save({"x": torch.ones(3, dtype=torch.float64)}, path)
    assert penstock.load(path, dtype=given)["x"].dtype == expected
    target = tmp_path / "copy.safetensors"
    penstock.convert(path, target, dtype=given)
    assert penstock.load(target)["x"].dtype == expected
    penstock.save({"x": torch.ones(3)}, target, dtype=given)
    assert penstock.load(target)["x"].dtype == expected


def test_a_dtype_that_is_not_floating_is_understood_and_refused(path: Path) -> None:
    penstock.save({"x": torch.ones(3)}, path)
    with pytest.raises(penstock.UnsupportedError, match="F32 can't be converted to I8"):
        penstock.load(path, dtype="int8")


@pytest.mark.parametrize("given", [torch.bfloat16, "bfloat16", "BF16", "torch.bfloat16", ml_dtypes.bfloat16, "bf16"])
def test_a_dtype_can_be_named_in_many_ways(path: Path, given: object) -> None:
    penstock.save({"x": torch.ones(3)}, path)
    assert penstock.load(path, dtype=given)["x"].dtype == torch.bfloat16


def test_numpy_dtypes_name_types_too(path: Path) -> None:
    penstock.save({"x": torch.ones(3)}, path)
    for given in (np.float16, np.dtype("float16"), np.dtype(">f2")):
        assert penstock.load(path, dtype=given)["x"].dtype == torch.float16


@pytest.mark.parametrize("given", ["float33", object(), "Q4_K", "", "\ud800"])
def test_an_unknown_dtype_lists_what_there_is(path: Path, given: object) -> None:
    penstock.save({"x": torch.ones(3)}, path)
    with pytest.raises(penstock.ArgumentError, match=r"unknown dtype .*: there are BOOL, .* BF16, .*fp16"):
        penstock.load(path, dtype=given)


@pytest.mark.parametrize("given", [float, int, bool, complex])
def test_a_type_of_python_says_nothing_of_its_width(path: Path, given: type) -> None:
    penstock.save({"x": torch.ones(3)}, path)
    with pytest.raises(penstock.ArgumentError, match='unknown dtype .*; name one, such as "float32"'):
        penstock.load(path, dtype=given)
