"""What goes in comes out, whatever the names, shapes and types."""

from __future__ import annotations

import tempfile
from pathlib import Path

import helpers
import hypothesis.extra.numpy as hnp
import numpy as np
import penstock
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

DTYPES = ["bool", "u1", "i1", "i2", "u2", "f2", "i4", "u4", "f4", "c8", "f8", "i8", "u8"]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__")
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(np.dtype(dtype), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)
STATE_DICTS = st.dictionaries(NAMES, ARRAYS, max_size=6)
METADATA = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    max_size=3,
)


@settings(max_examples=100, deadline=None)
@given(STATE_DICTS, METADATA)
def test_arrays_survive_and_the_reference_agrees(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        penstock.save(arrays, path, metadata=metadata, durable=False)
        helpers.assert_same_tensors(penstock.load(path, framework="numpy"), arrays)
        helpers.assert_same_tensors(safetensors.numpy.load_file(path), arrays)
        assert penstock.open(path).metadata == metadata


@settings(max_examples=60, deadline=None)
@given(STATE_DICTS, st.sampled_from(["auto", "copy", "direct", "buffered", "mmap"]))
def test_files_of_the_reference_load_by_every_policy(arrays: dict[str, np.ndarray], cache: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        safetensors.numpy.save_file(arrays, path)
        loaded = penstock.load(path, cache=cache)
        helpers.assert_same_tensors({name: tensor.numpy() for name, tensor in loaded.items()}, arrays)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(NAMES.filter(bool), ARRAYS, min_size=1, max_size=8), st.integers(1, 400), st.booleans())
def test_shards_hold_the_same_tensors(arrays: dict[str, np.ndarray], size: int, checksums: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        penstock.save(arrays, path, max_shard_size=size, checksums=checksums, durable=False)
        helpers.assert_same_tensors(penstock.load(folder, framework="numpy", verify=checksums), arrays)


def test_a_hundred_thousand_tensors_survive(path: Path) -> None:
    block = torch.arange(100_000 * 4, dtype=torch.int32).reshape(100_000, 4)
    penstock.save({f"layer.{i}": block[i] for i in range(len(block))}, path, durable=False)
    loaded = penstock.load(path)
    assert len(loaded) == 100_000
    assert torch.equal(torch.stack([loaded[f"layer.{i}"] for i in range(len(block))]), block)
    reader = penstock.open(path)
    assert len(reader) == 100_000
    assert reader["layer.99999"].load().tolist() == block[99_999].tolist()


def test_loaded_tensors_are_independent_and_writable(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    penstock.save(tensors, path)
    for cache in ("auto", "copy", "direct", "buffered", "mmap"):
        loaded = penstock.load(path, cache=cache)
        loaded["layers.0.bias"].fill_(7)
        del loaded["layers.0.bias"]
        for name, tensor in loaded.items():
            assert helpers.same(tensor, tensors[name])
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
            assert not tensor._is_view()
    helpers.assert_same_tensors(safetensors.torch.load_file(path), tensors)


def test_tensors_outlive_their_reader_and_their_file(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    penstock.save(tensors, path)
    with penstock.open(path) as reader:
        lazy = {name: lazy.load() for name, lazy in reader.items()}
    loaded = penstock.load(path)
    path.unlink()
    helpers.assert_same_tensors(lazy, tensors)
    helpers.assert_same_tensors(loaded, tensors)


def test_saving_over_a_file_leaves_loaded_tensors_alone(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    penstock.save(tensors, path)
    loaded = penstock.load(path)
    penstock.save({name: torch.zeros_like(tensor) for name, tensor in tensors.items()}, path)
    helpers.assert_same_tensors(loaded, tensors)
