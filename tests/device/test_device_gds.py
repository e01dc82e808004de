"""GPUDirect Storage from Python, with the simulated cuFile: what it moves, and why it does not move the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock
import pytest
import torch
from device_states import SUFFIXES, assert_there, bytes_here, make_state, save_state, to_device, zeros_like
from penstock.fastpersist import fastpersist_save, fastpersist_save_legacy
from sim_device import Simulator

SETTINGS: dict[str, Any] = {"cache": "direct"}


@pytest.fixture(autouse=True)
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system that has all that GPUDirect Storage takes."""
    root = tmp_path / "system"
    for name, text in (("proc/modules", ""), ("proc/driver/nvidia-fs/devcount", "1\n"), ("dev/nvidia-fs0", "")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setenv("PENSTOCK_GDS_ROOT", str(root))
    monkeypatch.delenv("PENSTOCK_GDS", raising=False)
    return root


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_are_read_by_the_device(sim: Simulator, tmp_path: Path, suffix: str) -> None:
    state = make_state()
    path = save_state(tmp_path, suffix, state)
    stats: dict[str, Any] = {}
    with sim.watched() as counters:
        loaded = penstock.load(path, "sim:1", stats=stats, **SETTINGS)
    assert_there(sim, loaded, state, "sim:1")
    assert stats["gds"].startswith("used")
    assert 4 * 2**20 < stats["bytes_gds"] == counters.file_bytes_read
    assert stats["bytes_gds"] % 4096 == 0


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_targets_are_read_into_by_the_device(sim: Simulator, tmp_path: Path, suffix: str) -> None:
    state = make_state()
    path = save_state(tmp_path, suffix, state)
    target = zeros_like(state)
    with sim.watched() as counters:
        penstock.load_into(target, path, **SETTINGS)
    assert_there(sim, target, state)
    assert counters.file_bytes_read > 4 * 2**20


def test_what_was_read_for_several_devices_is_added_up(sim: Simulator, tmp_path: Path) -> None:
    """A load for each of them, when tensors are replaced."""
    devices = {"a": "cpu", "b": "sim:0", "c": "sim:1"}
    state = {name: torch.arange(2**18 * size) for size, name in zip((3, 2, 1), devices, strict=True)}
    path = save_state(tmp_path, "safetensors", state)
    target = {name: torch.zeros(tensor.shape, dtype=torch.int64).to(devices[name]) for name, tensor in state.items()}
    stats: dict[str, Any] = {}
    with sim.watched() as counters:
        penstock.load_into(target, path, assign=True, stats=stats, **SETTINGS)
    for name in ("b", "c"):
        assert_there(sim, {name: target[name]}, {name: state[name]}, devices[name])
    assert 5 * 2**20 < stats["bytes_gds"] == counters.file_bytes_read
    assert stats["device"] == "cuda:0 (Simulated Accelerator), cuda:1 (Simulated Accelerator)"
    assert stats["gds"].startswith("used")
    assert stats["pinning"] == "registered"


def test_streams_are_read_by_the_device(sim: Simulator, tmp_path: Path) -> None:
    state = make_state()
    path = save_state(tmp_path, "safetensors", state)
    with sim.watched() as counters:
        streamed = dict(penstock.stream(path, device="sim:0", **SETTINGS))
        assert_there(sim, streamed, state)
    assert counters.file_bytes_read > 4 * 2**20


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_are_written_by_the_device(sim: Simulator, tmp_path: Path, suffix: str) -> None:
    state = make_state()
    alone = save_state(tmp_path, suffix, state)
    there = to_device(state)
    path = tmp_path / f"there.{suffix}"
    checksums = {"record_checksums": False} if suffix == "pt" else {}  # which are taken on the host
    with sim.watched() as counters:
        stats = penstock.save(there, path, method="direct", **checksums)
    assert stats["gds"].startswith("used")
    assert 4 * 2**20 < stats["bytes_gds"] == counters.file_bytes_written
    if suffix == "pt":  # whose records are named for the file
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        assert {name: bytes_here(tensor) for name, tensor in loaded.items()} == {
            name: bytes_here(tensor) for name, tensor in state.items()
        }
    else:
        assert path.read_bytes() == alone.read_bytes()
    assert sorted(found.name for found in tmp_path.iterdir()) == sorted([alone.name, path.name, "system"])


def test_fastpersist_asks_for_it(sim: Simulator, tmp_path: Path, system: Path) -> None:
    """Also where cuFile would only emulate it."""
    (system / "dev/nvidia-fs0").unlink()
    there = to_device(make_state())
    assert fastpersist_save_legacy(there, tmp_path / "a.pt", use_gds=True)["gds"].startswith("used")
    assert "/dev/nvidia-fs0 is missing" in fastpersist_save_legacy(there, tmp_path / "b.pt", use_gds=False)["gds"]
    assert "checksums are taken on the host" in fastpersist_save(there, tmp_path / "c.pt", use_gds=True)["gds"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"gds": "off"}, "turned off"),
        ({"verify": True}, "verify"),
        ({"dtype": torch.bfloat16}, "what is converted"),
    ],
    ids=["off", "verify", "dtype"],
)
def test_what_goes_another_way_says_why(sim: Simulator, tmp_path: Path, arguments: dict[str, Any], reason: str) -> None:
    state = {"x": torch.randn(1200, 1100)}
    path = save_state(tmp_path, "safetensors", state, checksums=True)
    stats: dict[str, Any] = {}
    with sim.watched() as counters:
        loaded = penstock.load(path, "sim:0", stats=stats, **arguments, **SETTINGS)
    assert_there(sim, loaded, {"x": state["x"].to(loaded["x"].dtype)})
    assert counters.file_bytes_read == stats["bytes_gds"] == 0
    assert reason in stats["gds"]


def test_a_file_that_cufile_refuses_is_read_through_pinned_memory(sim: Simulator, tmp_path: Path) -> None:
    state = make_state()
    path = save_state(tmp_path, "safetensors", state)
    stats: dict[str, Any] = {}
    sim.fail("cuFileHandleRegister:1+:5022")
    with sim.watched():
        loaded = penstock.load(path, "sim:0", stats=stats, **SETTINGS)
    assert_there(sim, loaded, state)
    assert "cuFileHandleRegister" in stats["gds"]
    assert stats["bytes_gds"] == 0


def test_a_word_that_gds_does_not_know(sim: Simulator, tmp_path: Path) -> None:
    path = save_state(tmp_path, "safetensors", {"x": torch.ones(3)})
    with pytest.raises(ValueError, match="gds"):
        penstock.load(path, "sim:0", gds="perhaps")
