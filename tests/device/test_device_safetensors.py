"""The safetensors drop-in on a device: safe_open, slices, prefetch, load_file and save_file."""

from __future__ import annotations

from pathlib import Path

import penstock
import penstock.safetensors
import penstock.safetensors.torch
import pytest
import torch
from device_states import assert_there, bytes_here, bytes_there, make_state, save_state, to_device
from penstock.safetensors import safe_open
from sim_device import Simulator


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save_state(tmp_path, "safetensors", make_state())


def test_tensors_one_by_one(sim: Simulator, path: Path) -> None:
    state = make_state()
    with sim.watched(), safe_open(path, "pt", "sim:1") as file:
        loaded = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert_there(sim, loaded, state, "sim:1")


def test_all_at_once(sim: Simulator, path: Path) -> None:
    with sim.watched(), safe_open(path, "pt", "sim") as file:
        assert_there(sim, file.get_tensors(), make_state())


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_load_file(sim: Simulator, path: Path, backend: str) -> None:
    with sim.watched():
        assert_there(sim, penstock.safetensors.torch.load_file(path, "sim", backend=backend), make_state())


@pytest.mark.parametrize(
    "index",
    [slice(3, 900), (slice(None), slice(5, 9)), (slice(2, 7), 3), (..., slice(None, None, 2)), 5, None],
    ids=str,
)
def test_slices(sim: Simulator, path: Path, index: object) -> None:
    expected = make_state()["large"][index]
    with sim.watched(), safe_open(path, "pt", "sim") as file:
        part = file.get_slice("large")[index]
    assert part.device == torch.device("sim:0")
    assert torch.equal(part.cpu(), expected)


def test_positions_are_picked_on_the_device(sim: Simulator, path: Path) -> None:
    with safe_open(path, "pt", "sim") as file:
        part = file.get_slice("large")[[3, 1]]
    assert torch.equal(part.cpu(), make_state()["large"][[3, 1]])


def test_prefetch_of_a_whole_file(sim: Simulator, path: Path) -> None:
    with sim.watched(), safe_open(path, "pt", "sim") as file, file.prefetch() as loader:
        loaded = dict(loader)
    assert_there(sim, loaded, make_state())


def test_prefetch_of_a_plan_to_another_device(sim: Simulator, path: Path) -> None:
    state = make_state()
    with sim.watched():
        with safe_open(path, "pt") as file:
            loader = file.prefetch({"large": slice(10, 500), "half": None, "bfloat": slice(0, 0)}, device="sim:1")
        loaded = {name: loader.take(name) for name in ("half", "large", "bfloat")}
        loader.close()
    expected = {"large": state["large"][10:500], "half": state["half"], "bfloat": state["bfloat"][:0]}
    assert_there(sim, loaded, expected, "sim:1")


def test_prefetched_tensors_that_nobody_takes_are_let_go_of(sim: Simulator, path: Path) -> None:
    with sim.watched(), safe_open(path, "pt", "sim") as file, file.prefetch() as loader:
        loader.take("half")
    del loader
    assert sim.allocated() == 0


def test_work_that_the_caller_has_queued_comes_first(sim: Simulator, tmp_path: Path) -> None:
    state = {"x": torch.arange(2**18, dtype=torch.int32)}
    path = save_state(tmp_path, "safetensors", state)
    with safe_open(path, "pt", "sim") as file:
        old = torch.empty(state["x"].nbytes + 16384, dtype=torch.uint8, device="sim")
        address = old.data_ptr()
        sim.fill_late(old, 255, 100)
        del old
        with sim.watched():
            loaded = file.get_tensor("x")
    assert address <= loaded.data_ptr() < address + 16384  # else this test shows nothing
    assert bytes_there(sim, loaded) == bytes_here(state["x"])


def test_a_loader_that_runs_out_of_memory_says_so_in_torchs_words(sim: Simulator, path: Path) -> None:
    with safe_open(path, "pt", "sim") as file:
        file.get_tensor("counter")
        sim.empty_cache()
        sim.fail("cuMemAlloc_v2:1+:2")
        with pytest.raises(torch.OutOfMemoryError, match="^sim:0 out of memory"):
            file.get_tensor("large")
        sim.fail("")
        assert bytes_there(sim, file.get_tensor("large")) == bytes_here(make_state()["large"])


def test_save_file_of_what_is_on_a_device(sim: Simulator, tmp_path: Path) -> None:
    state = make_state()
    there = to_device(state)
    with sim.watched():
        penstock.safetensors.torch.save_file(there, tmp_path / "there.safetensors")
        data = penstock.safetensors.torch.save(there)
    penstock.safetensors.torch.save_file(state, tmp_path / "here.safetensors")
    assert (tmp_path / "there.safetensors").read_bytes() == (tmp_path / "here.safetensors").read_bytes() == data


def test_models_on_a_device(sim: Simulator, tmp_path: Path) -> None:
    model, other = torch.nn.Linear(300, 400).to("sim"), torch.nn.Linear(300, 400).to("sim")
    path = tmp_path / "model.safetensors"
    with sim.watched():
        penstock.safetensors.torch.save_model(model, str(path))
        assert penstock.safetensors.torch.load_model(other, path, device="sim") == (set(), [])
        torch.accelerator.synchronize()  # load_state_dict has queued copies of its own
    assert torch.equal(other.weight.cpu(), model.weight.cpu())


def test_a_device_that_is_not_there(path: Path) -> None:
    with (
        safe_open(path, "pt", "sim:5") as file,
        pytest.raises(penstock.UnsupportedError, match="^the device 'sim:5' can't be used: there are sim:0 to sim:1$"),
    ):
        file.get_tensor("large")
