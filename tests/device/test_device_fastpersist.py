"""The FastPersist drop-in on a device: writers, raw files, the checkpoint engine."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import penstock
import pytest
import torch
from device_states import assert_there, bytes_here, bytes_there, make_state, to_device
from penstock import fastpersist
from penstock.fastpersist import CheckpointEngine, FastFileWriter, MockFileWriter, PyFileWriter
from penstock.fastpersist.aio import aio_handle, aio_read, aio_write
from sim_device import Simulator

MIB = 2**20
writers = pytest.mark.parametrize("writer", [FastFileWriter, PyFileWriter])


def assert_saved(path: Path, expected: dict[str, torch.Tensor]) -> None:
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    assert list(loaded) == list(expected)
    for name, tensor in expected.items():
        assert bytes_here(loaded[name]) == bytes_here(tensor), name


@writers
def test_torch_saves_to_a_writer(sim: Simulator, tmp_path: Path, writer: Any) -> None:
    state = make_state()
    there = to_device(state)
    path = tmp_path / "model.pt"
    with sim.watched(pageable=1000), writer(path) as file:  # torch fetches each storage by itself
        torch.save(there, file)
    assert_saved(path, state)


@writers
@pytest.mark.parametrize("sizes", [False, True], ids=["bytes", "with their sizes"])
def test_lists_of_storages(sim: Simulator, tmp_path: Path, writer: Any, sizes: bool) -> None:
    tensors = [torch.randn(700_001), torch.arange(5), torch.empty(0), torch.randn(3 * MIB).half()]
    there = [tensor.to(f"sim:{number % 2}") for number, tensor in enumerate(tensors)]
    files = []
    for name, each in (("here", tensors), ("there", there)):
        files.append(tmp_path / name)
        with sim.watched() as counters, writer(files[-1]) as file:
            file.save_torch_storage_object_list([(tensor.untyped_storage(), tensor.dtype) for tensor in each], sizes)
    assert files[1].read_bytes() == files[0].read_bytes()
    assert counters.bytes_to_host == sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("own_stream", [False, True], ids=["the default stream", "a stream of the caller's"])
def test_storages_are_written_after_what_is_queued(sim: Simulator, tmp_path: Path, own_stream: bool) -> None:
    tensor = torch.zeros(MIB, dtype=torch.uint8, device="sim")
    stream = torch.Stream("sim:0") if own_stream else torch.accelerator.current_stream("sim:0")
    with stream, FastFileWriter(tmp_path / "a") as file:
        sim.fill_late(tensor, 7, 100)
        file.save_torch_storage_object_list([(tensor.untyped_storage(), tensor.dtype)], False)
    assert (tmp_path / "a").read_bytes() == b"\x07" * MIB


def test_a_writer_that_can_not_fetch_leaves_the_old_file(sim: Simulator, tmp_path: Path) -> None:
    tensor = torch.ones(MIB, device="sim")
    path = tmp_path / "model"
    path.write_bytes(b"old")
    sim.fail("cuMemcpyDtoHAsync_v2:1:700")
    with (
        pytest.raises(penstock.DeviceError, match=rf"^{path}: cuda:0 [^\n]*cuMemcpyDtoHAsync[^\n]*$"),
        FastFileWriter(path) as file,
    ):
        file.save_torch_storage_object_list([(tensor.untyped_storage(), tensor.dtype)], False)
    sim.fail("")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_what_writes_nothing_fetches_nothing(sim: Simulator, tmp_path: Path) -> None:
    tensor = torch.ones(MIB, device="sim")
    with sim.watched() as counters, MockFileWriter(tmp_path / "a") as file:
        assert file.save_torch_storage_object_list([(tensor.untyped_storage(), tensor.dtype)], True) == 4 * MIB + 8
    assert counters.bytes_to_host == 0


def test_storages_without_data_are_refused(tmp_path: Path) -> None:
    storage = torch.ones(3, device="meta").untyped_storage()
    with (
        pytest.raises(penstock.UnsupportedError, match="^a storage on the meta device has no data$"),
        FastFileWriter(tmp_path / "a") as file,
    ):
        file.save_torch_storage_object_list([(storage, torch.float32)], False)
    assert list(tmp_path.iterdir()) == []


def test_raw_files(sim: Simulator, tmp_path: Path) -> None:
    tensor = torch.randn(3 * MIB + 5)
    there = tensor.to("sim:1")
    handle = aio_handle(intra_op_parallelism=2)
    path = tmp_path / "raw"
    with sim.watched():
        assert handle.sync_pwrite(there, path) == 1
        assert path.read_bytes() == bytes_here(tensor)
        handle.async_pwrite(there[:1000], path, 8)
        assert handle.wait() == 1
        again = torch.zeros_like(there)
        handle.async_pread(again, path)
        assert handle.wait() == 1
        handle.read(again[:100], path, validate=True, file_offset=4)
    data = path.read_bytes()
    assert data == bytes_here(tensor[:2]) + bytes_here(tensor[:1000]) + bytes_here(tensor[1002:])
    assert bytes_there(sim, again) == data[4:404] + data[400:]


def test_raw_files_by_one_call(sim: Simulator, tmp_path: Path) -> None:
    tensor = torch.randn(MIB)
    there, again = tensor.to("sim"), torch.zeros(MIB, device="sim")
    with sim.watched():
        aio_write(there, tmp_path / "raw", MIB, 4, False, False, True)
        aio_read(again, tmp_path / "raw", MIB, 4, False, False, True)
    assert bytes_there(sim, again) == bytes_here(tensor)


def test_raw_files_have_what_was_queued(sim: Simulator, tmp_path: Path) -> None:
    tensor = torch.zeros(MIB, dtype=torch.uint8, device="sim")
    handle = aio_handle()
    with torch.Stream("sim"):
        sim.fill_late(tensor, 7, 100)
        handle.write(tensor, tmp_path / "raw")
        sim.fill_late(tensor, 9, 100)
        handle.read(tensor, tmp_path / "raw")
    assert (tmp_path / "raw").read_bytes() == bytes_there(sim, tensor) == b"\x07" * MIB


@pytest.mark.parametrize("save", [fastpersist.fastpersist_save, fastpersist.fastpersist_save_legacy])
def test_whole_checkpoints_in_one_call(sim: Simulator, tmp_path: Path, save: Any) -> None:
    state = make_state()
    del state["fp8"]  # which torch does not read of a legacy file
    there = to_device(state)
    with sim.watched():
        stats = save(there, tmp_path / "model.pt", use_gds=True)
    assert_saved(tmp_path / "model.pt", state)
    assert stats["gds"]  # used, or why not


@pytest.mark.parametrize("decoupled", [False, True], ids=["at once", "in the background"])
@pytest.mark.parametrize("zips", [False, True], ids=["legacy", "zip"])
def test_the_engine_saves_and_loads(sim: Simulator, tmp_path: Path, decoupled: bool, zips: bool) -> None:
    state = make_state()
    del state["fp8"]
    there = to_device(state, "sim:1")
    engine = CheckpointEngine({"checkpoint": {"checkpoint_serialization": zips, "writer": {"decoupled": decoupled}}})
    with sim.watched():
        engine.create("step")
        engine.save(there, tmp_path / "model.pt")
        for tensor in there.values():
            sim.fill_late(tensor, 255, 0) if tensor.nbytes > 0 else None
        engine.commit("step")
        torch.accelerator.synchronize("sim:1")
        loaded = engine.load(tmp_path / "model.pt", map_location="sim:0")
    assert_there(sim, loaded, state, "sim:0")


def test_a_python_writer_of_the_engine(sim: Simulator, tmp_path: Path) -> None:
    state = make_state()
    engine = CheckpointEngine({"checkpoint": {"writer": {"type": "python"}}})
    engine.save(to_device(state), tmp_path / "model.pt")
    assert_saved(tmp_path / "model.pt", state)


def test_file_objects_are_torchs(sim: Simulator, tmp_path: Path) -> None:
    state = make_state()
    buffer = io.BytesIO()
    fastpersist.serialization.save(to_device(state), buffer)
    buffer.seek(0)
    loaded = fastpersist.serialization.load(buffer, "sim:1")
    assert {name: bytes_there(sim, tensor) for name, tensor in loaded.items()} == {
        name: bytes_here(tensor) for name, tensor in state.items()
    }
