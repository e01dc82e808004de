"""Saves of tensors on devices: the file is the one that the host's tensors make, in the caller's order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock
import pytest
import torch
from device_states import SUFFIXES, bytes_here, make_state, save_state, to_device
from penstock.fastsafetensors import ParallelSaver
from penstock.fastsafetensors.saver import tensor_fill
from sim_device import Simulator

formats = pytest.mark.parametrize("suffix", SUFFIXES)


def save_both(
    tmp_path: Path, suffix: str, state: dict[str, Any], there: dict[str, Any], **arguments: Any
) -> list[Path]:
    paths = []
    for name, tensors in (("here", state), ("there", there)):
        (tmp_path / name).mkdir(exist_ok=True)
        paths.append(save_state(tmp_path / name, suffix, tensors, **arguments))
    return paths


def assert_same_file(suffix: str, here: Path, there: Path) -> None:
    """A torch file names the device that its tensors were on."""
    if suffix != "pt":
        assert there.read_bytes() == here.read_bytes()
        return
    expected, actual = (torch.load(path, map_location="cpu", weights_only=True) for path in (here, there))
    assert list(actual) == list(expected)
    for name, tensor in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (tensor.dtype, tensor.shape)
        assert bytes_here(actual[name]) == bytes_here(tensor), name


@formats
@pytest.mark.parametrize("method", ["direct", "buffered"])
def test_the_file_is_the_same(sim: Simulator, tmp_path: Path, suffix: str, method: str) -> None:
    state = make_state()
    there = to_device(state)
    here_path = save_state(tmp_path, suffix, state, method=method).rename(tmp_path / f"here.{suffix}")
    with sim.watched() as counters:
        path = save_state(tmp_path, suffix, there, method=method)
    assert_same_file(suffix, here_path, path)
    assert counters.bytes_to_host >= sum(tensor.nbytes for tensor in state.values())


def test_statistics_name_the_device(sim: Simulator, tmp_path: Path) -> None:
    stats = penstock.save(to_device(make_state()), tmp_path / "model.safetensors")
    assert stats.device == "cuda:0 (Simulated Accelerator)"
    assert stats.pinning == "registered"


@pytest.mark.parametrize("suffix", ["safetensors", "flashpack"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_types_are_converted_on_the_way(sim: Simulator, tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    state = make_state()
    there = to_device(state)
    with sim.watched():
        here_path, path = save_both(tmp_path, suffix, state, there, dtype=dtype)
    assert_same_file(suffix, here_path, path)


@pytest.mark.parametrize("suffix", ["safetensors", "flashpack"])
def test_checksums_are_those_of_the_tensors(sim: Simulator, tmp_path: Path, suffix: str) -> None:
    state = make_state()
    there = to_device(state)
    with sim.watched():
        here_path, path = save_both(tmp_path, suffix, state, there, checksums=True)
    assert_same_file(suffix, here_path, path)
    assert penstock.verify(path).ok


@pytest.mark.parametrize("suffix", ["safetensors", "flashpack"])
def test_tensors_that_are_not_contiguous(sim: Simulator, tmp_path: Path, suffix: str) -> None:
    base = torch.randn(300, 200)
    state = {"turned": base.t(), "narrow": base[:, 3:7], "stepped": base[::3, ::2], "whole": base.contiguous().clone()}
    on_device = base.to("sim")
    there = {
        "turned": on_device.t(),
        "narrow": on_device[:, 3:7],
        "stepped": on_device[::3, ::2],
        "whole": base.clone().to("sim"),
    }
    with sim.watched():
        here_path, path = save_both(tmp_path, suffix, state, there, shared="duplicate")
    assert_same_file(suffix, here_path, path)


def test_conjugated_tensors(sim: Simulator, tmp_path: Path) -> None:
    state = {"x": torch.randn(100, dtype=torch.complex64).conj()}
    there = {"x": state["x"].resolve_conj().to("sim").conj().conj()}
    with sim.watched():
        here_path, path = save_both(tmp_path, "safetensors", state, there)
    assert_same_file("safetensors", here_path, path)


def test_shards(sim: Simulator, tmp_path: Path) -> None:
    state = make_state()
    there = to_device(state)
    with sim.watched():
        save_both(tmp_path, "safetensors", state, there, max_shard_size="300kB")
    names = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert len(names) > 2
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == names
    for name in names:
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def test_tensors_of_the_host_and_of_two_devices_in_one_file(sim: Simulator, tmp_path: Path) -> None:
    state = {name: torch.randn(500, 300) for name in "abcd"}
    there = {"a": state["a"], "b": state["b"].to("sim:0"), "c": state["c"].to("sim:1"), "d": state["d"].to("sim:0")}
    with sim.watched():
        here_path, path = save_both(tmp_path, "safetensors", state, there)
    assert_same_file("safetensors", here_path, path)


def test_shared_memory_is_found_on_a_device_too(sim: Simulator, tmp_path: Path) -> None:
    base = torch.randn(100).to("sim")
    with pytest.raises(penstock.SharedMemoryError, match='tensors "a" and "b" share memory'):
        penstock.save({"a": base, "b": base}, tmp_path / "model.safetensors")
    with sim.watched():
        penstock.save({"a": base, "b": base}, tmp_path / "model.safetensors", shared="deduplicate")
    assert list(penstock.load(tmp_path / "model.safetensors")) == ["a"]


def test_a_torch_file_keeps_what_is_shared(sim: Simulator, tmp_path: Path) -> None:
    base = torch.arange(1000.0)
    there = base.to("sim")
    path = tmp_path / "model.pt"
    with sim.watched():
        penstock.save({"all": there, "some": [there[10:20], there.view(10, 100).t()]}, path)
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    assert torch.equal(loaded["all"], base)
    assert torch.equal(loaded["some"][1], base.view(10, 100).t())
    assert loaded["some"][0].untyped_storage().data_ptr() == loaded["all"].untyped_storage().data_ptr()


@pytest.mark.parametrize("own_stream", [False, True], ids=["the default stream", "a stream of the caller's"])
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_work_that_the_caller_has_queued_comes_first(
    sim: Simulator, tmp_path: Path, own_stream: bool, suffix: str
) -> None:
    tensor = torch.zeros(2**20, dtype=torch.uint8, device="sim")
    stream = torch.Stream("sim:0") if own_stream else torch.accelerator.current_stream("sim:0")
    with stream:
        sim.fill_late(tensor, 7, 100)
        with sim.watched():
            path = save_state(tmp_path, suffix, {"x": tensor})
    assert bool((penstock.load(path)["x"] == 7).all())


@formats
@pytest.mark.parametrize("snapshot", [True, False, "device"])
def test_a_background_save(sim: Simulator, tmp_path: Path, suffix: str, snapshot: bool | str) -> None:
    state = make_state()
    there = to_device(state)
    here_path = save_state(tmp_path, suffix, state).rename(tmp_path / f"here.{suffix}")
    with sim.watched() as counters:
        job = penstock.save_async(there, tmp_path / f"model.{suffix}", snapshot=snapshot)
        assert job.staged()
        if snapshot:
            for tensor in there.values():
                sim.fill_late(tensor, 255, 0) if tensor.nbytes > 0 else None
        stats = job.wait()
        torch.accelerator.synchronize()
    assert_same_file(suffix, here_path, tmp_path / f"model.{suffix}")
    assert (counters.bytes_within_device > 0) == (snapshot == "device")
    if snapshot == "device":
        assert stats.reason.endswith("the snapshot is on the device")


def test_the_snapshot_on_the_device_is_torchs_memory(sim: Simulator, tmp_path: Path) -> None:
    there = {"x": torch.ones(2**20, device="sim")}
    before = sim.allocated()
    sim.hold(True)
    job = penstock.save_async(there, tmp_path / "model.safetensors", snapshot="device")
    assert sim.allocated() >= before + 2**22
    sim.hold(False)
    job.wait()
    assert sim.allocated() == before


def test_a_device_that_is_full_has_its_snapshot_on_the_host(sim: Simulator, tmp_path: Path) -> None:
    sim.set(memory=40 << 20)
    there = {"x": torch.ones(4 << 20, device="sim")}  # 16 of 40 MiB
    job = penstock.save_async(there, tmp_path / "model.safetensors", snapshot="device")
    stats = job.wait()
    assert "; the snapshot is on the host: cuda:0 (Simulated Accelerator) has " in stats.reason
    assert bool((penstock.load(tmp_path / "model.safetensors")["x"] == 1).all())


def test_what_torch_can_not_give_is_the_hosts(sim: Simulator, tmp_path: Path) -> None:
    there = {"x": torch.ones(4 << 20, device="sim")}
    sim.empty_cache()
    sim.fail("cuMemAlloc_v2:1+:2")
    stats = penstock.save_async(there, tmp_path / "model.safetensors", snapshot="device").wait()
    sim.fail("")
    assert "; the snapshot is on the host: OutOfMemoryError: sim:0 out of memory" in stats.reason
    assert bool((penstock.load(tmp_path / "model.safetensors")["x"] == 1).all())


def test_a_snapshot_is_true_false_or_of_a_device(tmp_path: Path) -> None:
    with pytest.raises(
        penstock.ArgumentError,
        match='^snapshot must be True, False or "device", not "host"$'.replace('"host"', "'host'"),
    ):
        penstock.save_async({"x": torch.ones(3)}, tmp_path / "x.safetensors", snapshot="host")


def test_a_device_snapshot_of_the_hosts_tensors_is_one_of_the_host(tmp_path: Path) -> None:
    stats = penstock.save_async({"x": torch.ones(3)}, tmp_path / "x.safetensors", snapshot="device").wait()
    assert stats.reason.endswith("; the snapshot is on the host: no tensor lies on a device")


def test_tensors_without_data_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(penstock.UnsupportedError, match="^x: a tensor on the meta device has no data$"):
        penstock.save({"x": torch.ones(3, device="meta")}, path)
    assert not path.exists()


def test_a_device_snapshot_of_several_devices_is_one_of_the_host(sim: Simulator, tmp_path: Path) -> None:
    state = {name: torch.randn(500, 300) for name in "abc"}
    there = {"a": state["a"].clone(), "b": state["b"].to("sim:0"), "c": state["c"].to("sim:1")}
    with sim.watched():
        job = penstock.save_async(there, tmp_path / "model.safetensors", snapshot="device")
        assert job.staged()
        there["a"].zero_()
        for name in "bc":
            sim.fill_late(there[name], 255, 0)
        stats = job.wait()
        torch.accelerator.synchronize("sim:0")
        torch.accelerator.synchronize("sim:1")
    assert "; the snapshot is on the " in stats.reason
    assert all(
        torch.equal(tensor, state[name]) for name, tensor in penstock.load(tmp_path / "model.safetensors").items()
    )


def test_a_round_trip_by_way_of_two_devices(sim: Simulator, tmp_path: Path) -> None:
    state = make_state()
    path = save_state(tmp_path, "safetensors", state)
    with sim.watched():
        penstock.save(penstock.load(path, "sim:1"), tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("fill", [None, lambda work: tensor_fill()(work)], ids=["engine", "maps"])
def test_a_set_of_fastsafetensors_is_the_same(sim: Simulator, tmp_path: Path, fill: Any) -> None:
    state = make_state()
    there = to_device(state)
    with sim.watched(pageable=0 if fill is None else len(state)) as counters:  # a fill copies as torch does
        paths = ParallelSaver(num_shards=3, fill=fill).save(there, str(tmp_path / "model"))
    assert counters.bytes_to_host >= sum(tensor.nbytes for tensor in state.values())
    found = penstock.load(paths)
    assert set(found) == set(state)
    for name, tensor in state.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert bytes_here(found[name]) == bytes_here(tensor), name
