"""Indexing a tensor that is not loaded gives what NumPy gives, and reads little else."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helpers
import hypothesis.extra.numpy as hnp
import numpy as np
import penstock
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

ARRAYS = {
    "cube": np.arange(4 * 5 * 6, dtype=np.float32).reshape(4, 5, 6),
    "matrix": np.arange(7 * 3, dtype=np.int64).reshape(7, 3),
    "vector": np.arange(9, dtype=np.uint8),
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 3), np.float16),
}


@pytest.fixture(scope="module")
def file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        penstock.save(ARRAYS, path)
        yield path


def indices() -> st.SearchStrategy[tuple[str, Any]]:
    def with_name(name: str) -> st.SearchStrategy[tuple[str, Any]]:
        shape = ARRAYS[name].shape
        return st.tuples(st.just(name), hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))

    return st.sampled_from(sorted(ARRAYS)).flatmap(with_name)


@settings(max_examples=400, deadline=None)
@given(indices(), st.sampled_from(["auto", "direct", "buffered"]))
def test_every_basic_index_gives_what_numpy_gives(file: Path, case: tuple[str, Any], cache: str) -> None:
    name, index = case
    expected = ARRAYS[name][index]
    actual = penstock.open(file, "numpy", cache=cache)[name][index]
    assert np.shape(actual) == np.shape(expected)
    assert np.asarray(actual).dtype == expected.dtype
    assert np.array_equal(actual, expected)


@settings(max_examples=200, deadline=None)
@given(indices())
def test_torch_tensors_come_out_the_same(file: Path, case: tuple[str, Any]) -> None:
    name, index = case
    actual = penstock.open(file, "torch")[name][index]
    assert isinstance(actual, torch.Tensor)
    assert np.array_equal(actual.numpy(), ARRAYS[name][index])


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (4, "index 4 is out of bounds for axis 0 with size 4"),
        ((0, -6), "index -6 is out of bounds for axis 1 with size 5"),
        ((0, 0, 0, 0), "too many indices: the tensor has 3 dimensions, and 4 were indexed"),
        ((..., 0, ...), "only one ellipsis"),
        (True, "not bool"),
        ([0, 1], "not list"),
        (np.array([0, 1]), "not ndarray"),
        (1.5, "not float"),
        ("a", "not str"),
    ],
)
def test_an_index_that_does_not_fit_is_an_index_error(file: Path, index: Any, message: str) -> None:
    with pytest.raises(penstock.TensorIndexError, match=message) as caught:
        penstock.open(file)["cube"][index]
    assert isinstance(caught.value, IndexError)


def test_numpy_integers_are_integers(file: Path) -> None:
    assert penstock.open(file, "numpy")["vector"][np.int64(3)] == 3


def test_a_row_slice_reads_only_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "big.safetensors"
    rows = torch.arange(64 * 2**20 // 4, dtype=torch.int32).reshape(-1, 1024)
    penstock.save({"x": rows}, path)
    reader = penstock.open(path, cache="buffered")
    before = _bytes_read()
    part = reader["x"][1000:1010]
    assert torch.equal(part, rows[1000:1010])
    assert _bytes_read() - before < 2**20


def test_a_column_slice_reads_less_than_the_tensor(tmp_path: Path) -> None:
    path = tmp_path / "wide.safetensors"
    wide = torch.arange(16 * 2**20 // 4, dtype=torch.int32).reshape(4, -1)
    penstock.save({"x": wide}, path)
    reader = penstock.open(path, cache="buffered")
    before = _bytes_read()
    assert torch.equal(reader["x"][:, 5:25], wide[:, 5:25])
    assert _bytes_read() - before < 8 * 2**20


def _bytes_read() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def test_a_lazy_tensor_describes_itself(file: Path) -> None:
    lazy = penstock.open(file)["cube"]
    assert (lazy.name, lazy.dtype, lazy.shape, lazy.nbytes) == ("cube", "F32", (4, 5, 6), 480)
    assert (lazy.ndim, lazy.size, len(lazy)) == (3, 120, 4)
    assert repr(lazy) == "<penstock.LazyTensor 'cube' F32 [4, 5, 6]>"
    with pytest.raises(TypeError, match="a scalar has no length"):
        len(penstock.open(file)["scalar"])


def test_a_lazy_tensor_becomes_what_is_asked_for(file: Path) -> None:
    lazy = penstock.open(file)["cube"]
    assert isinstance(lazy.numpy(), np.ndarray)
    assert isinstance(lazy.torch(), torch.Tensor)
    assert np.array_equal(np.asarray(lazy), ARRAYS["cube"])
    assert np.asarray(lazy, dtype=np.float64).dtype == np.float64
    assert np.array_equal(np.from_dlpack(lazy), ARRAYS["cube"])
    assert torch.equal(torch.from_dlpack(lazy), torch.from_numpy(ARRAYS["cube"]))


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3"])
def test_rows_of_packed_types_can_be_read(path: Path, dtype: str) -> None:
    row = 8 * helpers.BITS[dtype] // 8
    data = helpers.random_bytes(3 * row)
    helpers.write_raw(path, helpers.one_tensor(dtype, [3, 8], len(data)), data)
    lazy = penstock.open(path, "numpy")["x"]
    part = lazy[1:]
    assert (part.dtype, part.shape) == (dtype, (2, 8))
    assert part.data.tobytes() == data[row:]
    with pytest.raises(penstock.UnsupportedError, match="the last dimension"):
        lazy[:, 3]
    with pytest.raises(penstock.UnsupportedError, match="only contiguous slices"):
        lazy[0]


def test_rows_of_f4_come_as_torch_packs_them(path: Path) -> None:
    data = helpers.random_bytes(12)
    helpers.write_raw(path, helpers.one_tensor("F4", [3, 8], 12), data)
    part = penstock.open(path, "torch")["x"][1]
    assert part.dtype == torch.float4_e2m1fn_x2
    assert tuple(part.shape) == (4,)
    assert helpers.bits_of(part) == data[4:8]


def test_half_a_byte_cannot_be_sliced_off(path: Path) -> None:
    helpers.write_raw(path, helpers.one_tensor("F4", [2, 4], 4), b"abcd")
    with pytest.raises(penstock.Error):
        penstock.open(path)["x"][:, 1:2]


@pytest.mark.parametrize("cache", ["auto", "copy", "direct", "buffered", "mmap"])
@pytest.mark.parametrize("index", [slice(1, 3), slice(0, 1), slice(1, 2), slice(3, 8)])
def test_a_slice_within_a_byte_is_refused(tmp_path: Path, index: slice, cache: str) -> None:
    path = tmp_path / "f4.safetensors"
    helpers.write_raw(path, helpers.one_tensor("F4", [8], 4), b"\x12\x34\x56\x78")
    path.read_bytes()
    with pytest.raises(penstock.UnsupportedError, match="must start and end on whole bytes"):
        penstock.open(path, framework="numpy", cache=cache)["x"][index]
