"""How loaded memory becomes tensors of torch."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import penstock
import pytest
import torch
from penstock import _core, _torch
from penstock._options import load_options


def memories_of(path: Path, **options: Any) -> Any:
    return _core.Reader([str(path)]).load(None, load_options(**options), None, lambda memories, rows: memories)[0]


def load_memory(path: Path, nbytes: int = 4096) -> Any:
    penstock.save({"x": torch.arange(nbytes, dtype=torch.int64).to(torch.uint8)}, path)
    return memories_of(path)[0]


@pytest.fixture
def memory(tmp_path: Path) -> Any:
    return load_memory(tmp_path / "bytes.safetensors")


@pytest.mark.parametrize("name", sorted(_torch.DTYPES.keys() - {"F4"}))
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 2, 1, 2, 1, 2)])
def test_every_type_is_a_tensor_with_a_storage_of_its_own(memory: Any, name: str, shape: tuple[int, ...]) -> None:
    dtype = _torch.DTYPES[name]
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    tensor = _torch.view(memory, name, shape, 64, nbytes)
    assert (tensor.dtype, tuple(tensor.shape), tensor.data_ptr()) == (dtype, shape, memory.address + 64)
    assert tensor.is_contiguous()
    assert not tensor._is_view()
    assert tensor.is_leaf
    assert (tensor.storage_offset(), tensor.untyped_storage().nbytes()) == (0, nbytes)
    expected = bytes(memory)[64 : 64 + nbytes]
    assert bytes(tensor.reshape(-1).view(torch.uint8).tolist()) == expected
    tensor.zero_()
    assert bytes(memory)[64 : 64 + nbytes] == bytes(nbytes)


def test_a_tensor_keeps_its_memory_and_any_thread_may_drop_it(tmp_path: Path) -> None:
    pool = penstock.MemoryPool()
    path = tmp_path / "x.safetensors"
    penstock.save({"x": torch.arange(10**6), "y": torch.ones(5)}, path)
    tensors = penstock.load(path, cache="direct", pool=pool)
    assert pool.used_bytes > 0
    held = [tensors.pop("x")]
    del tensors
    gc.collect()
    assert torch.equal(held[0], torch.arange(10**6))
    dropping = threading.Thread(target=held.clear)
    dropping.start()
    dropping.join()
    assert pool.used_bytes == 0


def test_torch_may_drop_a_tensor_without_the_gil(tmp_path: Path) -> None:
    """The backward pass lets go of what it saved on a thread that holds no GIL."""
    pool = penstock.MemoryPool()
    path = tmp_path / "x.safetensors"
    penstock.save({"x": torch.ones(10**6)}, path)
    weight = torch.ones(10**6, requires_grad=True)
    loss = (weight * penstock.load(path, cache="direct", pool=pool)["x"]).sum()
    assert pool.used_bytes > 0
    loss.backward()  # type: ignore[no-untyped-call]
    assert pool.used_bytes == 0
    assert weight.grad is not None
    assert bool((weight.grad == 1).all())


def test_a_capsule_that_nobody_takes_keeps_nothing(tmp_path: Path) -> None:
    pool = penstock.MemoryPool()
    path = tmp_path / "x.safetensors"
    penstock.save({"x": torch.arange(10**6)}, path)
    memories = memories_of(path, cache="direct", pool=pool)
    capsule = memories[0].capsule("I64", (10**6,), 0)
    del memories
    assert pool.used_bytes > 0
    del capsule
    assert pool.used_bytes == 0


@pytest.mark.parametrize(
    ("dtype", "shape", "offset", "message"),
    [
        ("U8", (4097,), 0, "outside"),
        ("U8", (1,), 4096, "outside"),
        ("U8", (), 2**63, "outside"),
        ("F32", (2**62, 4), 0, "outside"),
        ("F32", (-1,), 0, "outside"),
        ("F8_E4M3", (1,), 0, "DLPack has no F8_E4M3"),
        ("F4", (2,), 0, "DLPack has no F4"),
        ("F33", (2,), 0, "unknown dtype"),
    ],
)
def test_what_is_not_there_has_no_capsule(memory: Any, dtype: str, shape: Any, offset: int, message: str) -> None:
    with pytest.raises(penstock.Error, match=message):
        memory.capsule(dtype, shape, offset)


@pytest.mark.parametrize("suffix", ["safetensors", "flashpack", "pt"])
@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(tmp_path: Path, suffix: str, enabled: bool) -> None:
    path = tmp_path / f"x.{suffix}"
    penstock.save({f"t{i}": torch.full((3,), i) for i in range(2000)}, path)
    was_enabled = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    collections = []
    gc.callbacks.append(lambda phase, details: collections.append(details["generation"]))
    try:
        tensors = penstock.load(path)
        assert gc.isenabled() == enabled
    finally:
        gc.callbacks.pop()
        (gc.enable if was_enabled else gc.disable)()
    assert len(collections) <= 4  # of which each is told twice
    assert len(tensors) == 2000


def test_an_error_leaves_the_collector_as_it_was() -> None:
    assert gc.isenabled()
    with pytest.raises(IndexError):
        _torch.build([], [("x", "F32", (1,), 0, 0, 4)])
    assert gc.isenabled()
