"""penstock.accelerate: safetensors and torch files, served or left to the original, with the original's results."""

from __future__ import annotations

import io
import os
import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import penstock
import pytest
import safetensors
import safetensors.torch
import torch
from accelerate_helpers import STOCK, Counts, decelerated

__all__ = ["decelerated"]

Tensors = dict[str, torch.Tensor]
OPEN, LOAD, SAVE = "safetensors.safe_open", "safetensors.torch.load_file", "safetensors.torch.save_file"


def test_safetensors_files_are_read_and_written_as_by_the_original(path: Path, tensors: Tensors) -> None:
    STOCK.save_file(tensors, path, metadata={"format": "pt"})
    other = path.with_name("other.safetensors")
    counts = Counts()
    with penstock.accelerate():
        helpers.assert_same_tensors(safetensors.torch.load_file(path), tensors)
        safetensors.torch.save_file(tensors, other, metadata={"format": "pt"})
    assert (counts.served(LOAD), counts.served(SAVE), counts.fell(LOAD), counts.fell(SAVE)) == (1, 1, {}, {})
    assert other.read_bytes() == path.read_bytes()


def test_open_files_answer_as_the_originals_do(path: Path, tensors: Tensors) -> None:
    STOCK.save_file(tensors, path, metadata={"format": "pt"})
    counts = Counts()
    with penstock.accelerate(), safetensors.safe_open(path, framework="pt", device="cpu", backend="mmap") as ours:
        assert isinstance(ours, safetensors.safe_open)
        with STOCK.safe_open(path, framework="pt") as stock:
            assert isinstance(stock, safetensors.safe_open)
            assert (list(ours.keys()), ours.offset_keys()) == (list(stock.keys()), stock.offset_keys())
            assert ours.metadata() == stock.metadata()
            for name in stock.keys():  # noqa: SIM118
                assert helpers.same(ours.get_tensor(name), stock.get_tensor(name))
                mine, theirs = ours.get_slice(name), stock.get_slice(name)
                assert (mine.get_shape(), mine.get_dtype()) == (theirs.get_shape(), theirs.get_dtype())
                if mine.get_shape():
                    assert helpers.same(mine[...], theirs[...])
            assert helpers.same(ours.get_slice("embed.weight")[1:9, ::3], stock.get_tensor("embed.weight")[1:9, ::3])
    assert counts.served(OPEN) == 1
    assert not isinstance(3, type(ours))


def test_models_are_saved_and_loaded_through_their_state(path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 4))
    again = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 4))
    counts = Counts()
    with penstock.accelerate():
        safetensors.torch.save_model(model, str(path))
        assert safetensors.torch.load_model(again, path) == (set(), [])
    helpers.assert_same_tensors(dict(again.state_dict()), dict(model.state_dict()))
    assert (counts.served(SAVE), counts.served(LOAD)) == (1, 1)


def test_mistakes_are_errors_of_the_original(path: Path, tensors: Tensors) -> None:
    STOCK.save_file(tensors, path)
    counts = Counts()
    with penstock.accelerate():
        with safetensors.safe_open(path, "pt") as file:
            with pytest.raises(safetensors.SafetensorError, match="does not contain tensor nope"):
                file.get_tensor("nope")
            with pytest.raises(safetensors.SafetensorError, match="does not contain tensor nope"):
                file.get_slice("nope")
            for slices in (file.get_slice("embed.weight"), STOCK.safe_open(path, "pt").get_slice("embed.weight")):
                with pytest.raises(IndexError, match="400"):
                    slices[400]
        with pytest.raises(FileNotFoundError):
            safetensors.torch.load_file(path.with_name("none"))
        with pytest.raises(FileNotFoundError):
            safetensors.safe_open(path.with_name("none"), "pt")
        with pytest.raises(TypeError):
            safetensors.safe_open(path)  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="non contiguous"):
            safetensors.torch.save_file({"x": torch.zeros(4, 3).t()}, path)
        with pytest.raises(RuntimeError, match="share memory"):
            safetensors.torch.save_file({"x": tensors["steps"], "y": tensors["steps"]}, path)
        broken = helpers.write_raw(path.with_name("broken"), b"{}x")
        with pytest.raises(safetensors.SafetensorError):
            safetensors.torch.load_file(broken)
    assert sum(counts.fell(OPEN).values()) >= 4
    assert sum(counts.fell(LOAD).values()) == 2
    helpers.assert_same_tensors(STOCK.load_file(path), tensors)


def test_other_frameworks_are_left_to_the_original(path: Path, tensors: Tensors) -> None:
    STOCK.save_file({"x": tensors["layers.0.bias"]}, path)
    counts = Counts()
    with penstock.accelerate():
        with safetensors.safe_open(path, framework="np") as file:
            assert np.array_equal(file.get_tensor("x"), tensors["layers.0.bias"].numpy())
        with pytest.raises(ModuleNotFoundError, match="mlx"):
            safetensors.safe_open(path, framework="mlx").get_tensor("x")  # it is not installed, says the original
    assert counts.served(OPEN) == 1
    assert counts.fell(OPEN) == {"framework='mlx'": 1}


@pytest.mark.parametrize("kind", ["symbolic link", "second name", "device"])
def test_files_that_others_hold_by_another_name_are_written_in_place(kind: str, tmp_path: Path) -> None:
    target, value = tmp_path / "target.pt", {"x": torch.arange(5)}
    STOCK.save({"x": torch.zeros(1)}, target)
    name = tmp_path / "name.pt"
    if kind == "symbolic link":
        name.symlink_to(target)
    elif kind == "second name":
        os.link(target, name)
    else:
        name = Path("/dev/null")
    counts = Counts()
    with penstock.accelerate():
        torch.save(value, name)
    assert len(counts.fell("torch.save")) == 1
    if kind != "device":
        assert torch.equal(STOCK.load(target)["x"], value["x"])
        assert name.is_symlink() == (kind == "symbolic link")


STATE = {"model": {"w": torch.randn(30, 20), "b": torch.randn(20).bfloat16()}, "step": 7, "names": ["a", "b"]}


def assert_same_state(state: Any) -> None:
    helpers.assert_same_tensors(state["model"], STATE["model"])  # type: ignore[arg-type]
    assert (state["step"], state["names"]) == (7, ["a", "b"])


@pytest.mark.parametrize("weights_only", [True, False, None])
@pytest.mark.parametrize("mmap", [True, False, None])
@pytest.mark.parametrize("location", [None, "cpu", torch.device("cpu"), {"cpu": "cpu"}, lambda storage, _: storage])
def test_torch_files_are_loaded_as_by_torch(weights_only: Any, mmap: Any, location: Any, tmp_path: Path) -> None:
    STOCK.save(STATE, tmp_path / "state.pt")
    counts = Counts()
    with penstock.accelerate():
        for path in (tmp_path / "state.pt", str(tmp_path / "state.pt")):
            assert_same_state(torch.load(path, map_location=location, weights_only=weights_only, mmap=mmap))
    assert (counts.served("torch.load"), counts.fell("torch.load")) == (2, {})


def test_torch_files_are_saved_as_torch_reads_them(tmp_path: Path) -> None:
    counts = Counts()
    with penstock.accelerate():
        torch.save(STATE, tmp_path / "zip.pt")
        torch.save(STATE, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    assert_same_state(STOCK.load(tmp_path / "zip.pt"))
    assert_same_state(STOCK.load(tmp_path / "legacy.pt"))
    assert counts.served("torch.save") == 2


def test_open_files_go_to_torch(tmp_path: Path) -> None:
    counts = Counts()
    with penstock.accelerate():
        buffer = io.BytesIO()
        torch.save(STATE, buffer)
        buffer.seek(0)
        assert_same_state(torch.load(buffer))
        with (tmp_path / "state.pt").open("wb") as file:
            torch.save(STATE, file)
        with (tmp_path / "state.pt").open("rb") as file:
            assert_same_state(torch.load(file))
    assert counts.fell("torch.save") == {
        "a BytesIO is not a path": 1,
        "a BufferedWriter is not a path": 1,
    }
    assert counts.fell("torch.load") == {"a BytesIO is not a path": 1, "a BufferedReader is not a path": 1}


def test_objects_are_executed_by_torch_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "object.pt"
    STOCK.save({"third": Fraction(1, 3), "x": torch.arange(3)}, path)
    counts = Counts()
    with penstock.accelerate():
        assert torch.load(path, weights_only=False)["third"] == Fraction(1, 3)
        with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
            torch.load(path)
    assert sum(counts.fell("torch.load").values()) == 2


def test_a_file_that_is_not_there_is_the_error_that_it_is() -> None:
    with penstock.accelerate(), pytest.raises(FileNotFoundError, match="No such file"):
        torch.load("/nowhere/at/all.pt")


def test_a_full_disk_is_no_reason_to_write_in_place(tmp_path: Path, tensors: Tensors) -> None:
    with helpers.mounted_disk(tmp_path / "disk", "1m") as disk:
        path = disk / "model.safetensors"
        STOCK.save_file(tensors, path)
        with penstock.accelerate(), pytest.raises(penstock.NoSpaceError):
            safetensors.torch.save_file({"x": torch.zeros(1 << 20)}, path)
        helpers.assert_same_tensors(STOCK.load_file(path), tensors)


def test_the_report_reads_as_a_table(path: Path, tensors: Tensors) -> None:
    with penstock.accelerate("safetensors"):
        safetensors.torch.save_file(tensors, path)
        torch.save({}, io.BytesIO())
        report = penstock.accelerated()
        assert str(report).startswith("accelerated: safetensors\n")
        assert f"{report.served[SAVE]:8}  {SAVE}\n" in str(report) + "\n"
    assert str(penstock.accelerated()).startswith("accelerated: nothing\n")


def test_what_memory_has_no_room_for_is_mapped_by_the_original(
    path: Path, tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    STOCK.save_file(tensors, path)
    STOCK.save(dict(tensors), path.with_suffix(".pt"))
    for each in (path, path.with_suffix(".pt")):
        penstock.measure.drop_page_cache(each)  # else it is mapped, and takes none
    monkeypatch.setenv("PENSTOCK_MEMORY_BUDGET", "1KiB")
    monkeypatch.setenv("PENSTOCK_LANDING", "staged")  # nor after another test has warmed it
    counts = Counts()
    with penstock.accelerate():
        helpers.assert_same_tensors(safetensors.torch.load_file(path), tensors)
        with safetensors.safe_open(path, "pt") as file:
            assert helpers.same(file.get_tensor("embed.weight"), tensors["embed.weight"])
        helpers.assert_same_tensors(torch.load(path.with_suffix(".pt"), mmap=True), tensors)
        with pytest.raises(penstock.OutOfMemoryError, match="PENSTOCK_MEMORY_BUDGET allows"):
            torch.load(path.with_suffix(".pt"))
    for entry in (LOAD, OPEN):
        assert any("PENSTOCK_MEMORY_BUDGET allows 1.0 KiB" in reason for reason in counts.fell(entry))
