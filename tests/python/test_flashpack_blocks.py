"""Macroblocks in memory: where they start, and penstock.flashpack.parallel_read, which fills them."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import torch
from penstock import _core
from penstock.flashpack import deserialization, iterate_from_flash_tensor, pack_to_file, parallel_read
from penstock.flashpack.deserialization import MacroblockSpec, read_flashpack_file

MIB = 2**20
STATES: dict[str, Any] = {
    "small": {"a": torch.randn(5), "b": torch.arange(7), "c": torch.ones(3, dtype=torch.bool)},
    "large": {
        "a": torch.randn(MIB + 3).bfloat16(),
        "b": torch.randint(0, 9, (3 * MIB + 5,), dtype=torch.uint8),
        "c": torch.randn(MIB),
    },
    "whole pages": {"a": torch.ones(4096), "b": torch.arange(1024), "c": torch.ones(4096, dtype=torch.uint8)},
    "an empty block": {"a": torch.ones(3), "b": torch.empty(0, dtype=torch.int8), "c": torch.arange(3)},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.flashpack"


def specs_of(metadata: dict[str, Any]) -> list[MacroblockSpec]:
    return [
        MacroblockSpec(
            getattr(torch, block["dtype"]), block["offset_bytes"], block["length_bytes"], block["length_elems"]
        )
        for block in metadata["macroblocks"]
    ]


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("is_cached", [True, False])
def test_every_block_starts_at_a_page(path: Path, name: str, is_cached: bool) -> None:
    state = STATES[name]
    pack_to_file(state, path)
    if is_cached:
        path.read_bytes()
    else:
        _core.drop_page_cache(path)
    storage, metadata = read_flashpack_file(path)
    assert len(storage) == len(metadata["macroblocks"])
    assert [block.data_ptr() % mmap.PAGESIZE for block in storage.blocks] == [0] * len(storage)
    assert [block.nbytes for block in storage.blocks] == [block["length_bytes"] for block in metadata["macroblocks"]]
    helpers.assert_same_tensors(dict(iterate_from_flash_tensor(storage, metadata)), state)
    for block in storage.blocks:
        block.fill_(1)  # it is ours to write
    helpers.assert_same_tensors(penstock.load(path), state)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_memory_for_blocks_of_ranks_starts_at_a_page(device: str) -> None:
    from penstock.flashpack._distributed import _allocate, _Block

    blocks = _allocate([_Block("F32", 12), _Block("U8", 5), _Block("U8", 0)], torch.device(device))
    assert [(block.nbytes, block.data_ptr() % mmap.PAGESIZE) for block in blocks] == [(12, 0), (5, 0), (0, 0)]
    assert {block.device.type for block in blocks} == {device}


def test_files_are_read_into_given_blocks(path: Path) -> None:
    state = STATES["large"]
    pack_to_file(state, path)
    expected, metadata = read_flashpack_file(path)
    specs = specs_of(metadata)
    blocks = [torch.empty(spec.length_elems, dtype=spec.dtype) for spec in specs]
    parallel_read.parallel_read_into_storage(str(path), specs, blocks, torch.device("cpu"))
    for block, other in zip(blocks, expected.blocks, strict=True):
        assert helpers.same(block, other)
    # Any range will do, as ranks ask for it.
    part = torch.empty(1000, dtype=torch.uint8)
    spec = MacroblockSpec(torch.uint8, 12_345, 1000, 1000)
    parallel_read.parallel_read_into_storage(str(path), [spec], [part], torch.device("cpu"))
    assert part.numpy().tobytes() == path.read_bytes()[12_345:13_345]


def test_blocks_of_another_device_are_read_in_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There need be no other device here: the way by pieces is taken to the CPU."""
    path.write_bytes(helpers.random_bytes(5000))
    monkeypatch.setattr(parallel_read, "_PIECE_BYTES", 999)
    memory = torch.empty(4000, dtype=torch.uint8)
    parallel_read._read_to_device(_core.AioHandle(4096, 2, False, True, 1), str(path), 7, memory)
    assert memory.numpy().tobytes() == path.read_bytes()[7:4007]


def test_blocks_that_can_not_be_filled_are_refused(path: Path) -> None:
    path.write_bytes(bytes(100))
    cpu = torch.device("cpu")
    spec = MacroblockSpec(torch.uint8, 90, 20, 20)
    with pytest.raises(penstock.ArgumentError, match="model.flashpack: 20 bytes at offset 90 reach past its end"):
        parallel_read.parallel_read_into_storage(path, [spec], [torch.empty(20, dtype=torch.uint8)], cpu)
    with pytest.raises(penstock.ArgumentError, match="a block of 19 bytes can't take the 20 at byte 90"):
        parallel_read.parallel_read_into_storage(path, [spec], [torch.empty(19, dtype=torch.uint8)], cpu)
    with pytest.raises(penstock.ArgumentError, match="1 specs are not for 0 blocks"):
        parallel_read.parallel_read_into_storage(path, [spec], [], cpu)
    with pytest.raises(FileNotFoundError, match="missing"):
        parallel_read.parallel_read_into_storage(
            path.parent / "missing", [spec], [torch.empty(20, dtype=torch.uint8)], cpu
        )


def test_who_asks_whether_to_read_in_parallel_is_told_what_flashpack_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASHPACK_PARALLEL_READ", raising=False)
    monkeypatch.delenv("FLASHPACK_CPU_PARALLEL_READ", raising=False)

    def answers() -> list[bool]:
        devices = [torch.device(name) for name in ("cuda", "cpu", "meta")]
        return [*map(parallel_read.parallel_read_supported, devices), parallel_read.sharded_read_available()]

    assert answers() == [True, False, False, True]
    monkeypatch.setenv("FLASHPACK_CPU_PARALLEL_READ", "1")
    assert answers() == [True, True, False, True]
    monkeypatch.setenv("FLASHPACK_PARALLEL_READ", "0")
    assert answers() == [False, False, False, False]
    assert deserialization.parallel_read_supported is parallel_read.parallel_read_supported


def test_kept_memory_can_be_given_back(path: Path) -> None:
    pool = penstock.MemoryPool.process_default()
    pack_to_file({"a": torch.ones(4 * MIB)}, path)
    del penstock.load(path, cache="direct")["a"]
    parallel_read.release_pinned_pool()
    assert pool.kept_bytes == 0
