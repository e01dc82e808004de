"""load_into of modules and tensors on devices: in place, converted on the way, tied, on several devices at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import penstock
import pytest
import torch
from device_states import SUFFIXES, assert_there, bytes_here, bytes_there, make_state, save_state, to_device, zeros_like
from helpers import run_python
from sim_device import Simulator
from torch import nn

formats = pytest.mark.parametrize("suffix", SUFFIXES)


def make_model() -> nn.Module:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(300, 400), nn.BatchNorm1d(400), nn.Linear(400, 300))
    model[1].running_mean.uniform_()
    return model


@formats
def test_bytes_land_in_the_memory_that_is_there(sim: Simulator, tmp_path: Path, suffix: str) -> None:
    state = make_state()
    path = save_state(tmp_path, suffix, state)
    target = zeros_like(state)
    addresses = {name: tensor.data_ptr() for name, tensor in target.items()}
    allocated = sim.allocated(peak=True)
    stats: dict[str, Any] = {}
    with sim.watched() as counters:
        penstock.load_into(target, path, stats=stats)
    assert {name: tensor.data_ptr() for name, tensor in target.items()} == addresses
    assert sim.allocated(peak=True) == allocated  # no second copy of anything
    assert stats["device"] == "cuda:0 (Simulated Accelerator)"
    assert counters.bytes_within_device == 0
    assert_there(sim, target, state)


@formats
def test_a_module_keeps_its_parameters_and_its_optimizer(sim: Simulator, tmp_path: Path, suffix: str) -> None:
    source = make_model()
    path = save_state(tmp_path, suffix, source.state_dict())
    model = nn.Sequential(nn.Linear(300, 400), nn.BatchNorm1d(400), nn.Linear(400, 300)).to("sim:1")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model(torch.ones(2, 300, device="sim:1")).sum().backward()
    optimizer.step()
    weight, version = model[0].weight, model[0].weight._version
    with sim.watched():
        result = penstock.load_into(model, path)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert model[0].weight is weight
    assert weight._version > version
    assert_there(
        sim, {name: tensor.detach() for name, tensor in model.state_dict().items()}, source.state_dict(), "sim:1"
    )
    assert weight in optimizer.state
    optimizer.step()


@formats
def test_types_are_converted_to_those_of_the_target(sim: Simulator, tmp_path: Path, suffix: str) -> None:
    state = {"narrowed": torch.randn(400, 500), "widened": torch.randn(70_001).half(), "counter": torch.arange(100)}
    path = save_state(tmp_path, suffix, state)
    expected = {
        "narrowed": state["narrowed"].bfloat16(),
        "widened": state["widened"].float(),
        "counter": state["counter"],
    }
    target = zeros_like(expected)
    with sim.watched():
        penstock.load_into(target, path)
    assert_there(sim, target, expected)


def test_what_only_torch_converts_is_converted_on_the_device(sim: Simulator, tmp_path: Path) -> None:
    state = {"numbers": torch.arange(1000, dtype=torch.int32)}
    path = save_state(tmp_path, "safetensors", state)
    target = {"numbers": torch.zeros(1000, dtype=torch.int64, device="sim")}
    with sim.watched():
        penstock.load_into(target, path)
    assert torch.equal(target["numbers"].cpu(), state["numbers"].long())


def test_a_tensor_that_is_not_contiguous_is_copied_to_on_the_device(sim: Simulator, tmp_path: Path) -> None:
    state = {"x": torch.randn(300, 200)}
    path = save_state(tmp_path, "safetensors", state)
    target = {"x": torch.zeros(200, 300, device="sim").t()}
    with sim.watched() as counters:
        penstock.load_into(target, path)
    assert counters.bytes_to_host == 0
    assert torch.equal(target["x"].cpu(), state["x"])


def test_tensors_of_the_host_and_of_two_devices_at_once(sim: Simulator, tmp_path: Path) -> None:
    state = {name: torch.randn(500, 300) for name in "abc"}
    path = save_state(tmp_path, "safetensors", state)
    target = {
        "a": torch.zeros(500, 300),
        "b": torch.zeros(500, 300, device="sim:0"),
        "c": torch.zeros(500, 300, device="sim:1"),
    }
    stats: dict[str, Any] = {}
    with sim.watched():
        penstock.load_into(target, path, stats=stats)
    assert torch.equal(target["a"], state["a"])
    assert_there(sim, {"b": target["b"]}, {"b": state["b"]}, "sim:0")
    assert_there(sim, {"c": target["c"]}, {"c": state["c"]}, "sim:1")
    assert stats["device"] == "cuda:0 (Simulated Accelerator), cuda:1 (Simulated Accelerator)"


def test_tied_tensors_stay_tied(sim: Simulator, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)).to("sim")
    model[1].weight = model[0].weight
    value = torch.randn(64, 64)
    path = save_state(tmp_path, "safetensors", {"0.weight": value})
    with sim.watched():
        penstock.load_into(model, path)
    assert model[1].weight is model[0].weight
    assert bytes_there(sim, model[0].weight) == bytes_here(value)


def test_replaced_tensors_are_loaded_to_where_the_old_ones_were(sim: Simulator, tmp_path: Path) -> None:
    source = make_model()
    path = save_state(tmp_path, "safetensors", source.state_dict())
    model = make_model()
    model[0].to("sim:0")
    model[2].to("sim:1")
    with sim.watched():
        penstock.load_into(model, path, assign=True)
    assert [model[i].weight.device for i in (0, 1, 2)] == [torch.device(name) for name in ("sim:0", "cpu", "sim:1")]
    assert bytes_there(sim, model[2].weight) == bytes_here(source[2].weight)
    assert torch.equal(model[1].running_mean, source[1].running_mean)


@pytest.mark.parametrize("own_stream", [False, True], ids=["the default stream", "a stream of the caller's"])
def test_work_that_the_caller_has_queued_comes_first(sim: Simulator, tmp_path: Path, own_stream: bool) -> None:
    state = {"x": torch.arange(2**18, dtype=torch.int32)}
    path = save_state(tmp_path, "safetensors", state)
    stream = torch.Stream("sim:0") if own_stream else torch.accelerator.current_stream("sim:0")
    target = zeros_like(state)
    with stream:
        sim.fill_late(target["x"], 255, 100)
        with sim.watched():
            penstock.load_into(target, path)
    assert_there(sim, target, state)


def test_a_file_that_does_not_fit_changes_nothing(sim: Simulator, tmp_path: Path) -> None:
    path = save_state(tmp_path, "safetensors", {"x": torch.ones(5), "y": torch.ones(3)})
    target = to_device({"x": torch.zeros(5), "y": torch.zeros(4)})
    with sim.watched(), pytest.raises(penstock.ArgumentError, match="y"):
        penstock.load_into(target, path)
    assert bytes_there(sim, target["x"]) == bytes(20)


def test_checksums_are_checked(sim: Simulator, tmp_path: Path) -> None:
    state = make_state()
    path = save_state(tmp_path, "safetensors", state, checksums=True)
    target = zeros_like(state)
    with sim.watched():
        penstock.load_into(target, path, verify=True)
    assert_there(sim, target, state)


def test_shards_are_read_into_the_memory_that_is_there(sim: Simulator, tmp_path: Path) -> None:
    state = make_state()
    penstock.save(state, tmp_path / "model.safetensors", max_shard_size="300kB")
    target = zeros_like(state, "sim:1")
    with sim.watched():
        penstock.load_into(target, tmp_path)
    assert_there(sim, target, state, "sim:1")


def test_selected_tensors_of_a_renamed_file(sim: Simulator, tmp_path: Path) -> None:
    state = {"model.a": torch.randn(70, 30), "model.b": torch.randn(5), "other": torch.randn(3)}
    path = save_state(tmp_path, "safetensors", state)
    target = to_device({"a": torch.zeros(70, 30), "b": torch.zeros(5)})
    with sim.watched():
        penstock.load_into(target, path, select="model.a", rename=penstock.strip_prefix("model."), strict=False)
    assert bytes_there(sim, target["a"]) == bytes_here(state["model.a"])
    assert bytes_there(sim, target["b"]) == bytes(20)


def test_a_model_without_memory_takes_what_a_device_has(sim: Simulator, tmp_path: Path) -> None:
    state = make_model().state_dict()
    path = save_state(tmp_path, "safetensors", state)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(300, 400), nn.BatchNorm1d(400), nn.Linear(400, 300))
    with sim.watched():
        model.load_state_dict(penstock.load(path, "sim:1"), assign=True)
    assert_there(sim, {name: tensor.detach() for name, tensor in model.state_dict().items()}, state, "sim:1")


def test_no_context_is_made_on_a_device_that_is_not_used(sim: Simulator, tmp_path: Path) -> None:
    """A process of its own, whose torch has not touched the other device."""
    path = save_state(tmp_path, "safetensors", {"x": torch.ones(1000)})
    script = """
        import sys
        sys.path[:0] = sys.argv[2:]
        import penstock, sim_device
        sim = sim_device.start()
        loaded = penstock.load(sys.argv[1], "sim:1")
        penstock.load_into(loaded, sys.argv[1])
        penstock.save(loaded, sys.argv[1])
        penstock.save_async(loaded, sys.argv[1], snapshot="device").wait()
        print(list(sim.counters().contexts_made)[:2])
    """
    assert run_python(script, str(path), *sys.path[:2]).stdout == "[0, 1]\n"
