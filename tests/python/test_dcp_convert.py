"""Directories of torch.distributed.checkpoint from and to files, and what other readers say of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import dcp_rank
import helpers
import penstock
import penstock.dcp
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from penstock.__main__ import find_command

OBJECTS = dcp_rank.OBJECTS


def make_state() -> dict[str, Any]:
    layers = [{"weight": torch.randn(3, 5)}, {"weight": torch.randn(3, 5), "flag": True}]
    return {"model": dcp_rank.full_tensors(), "layers": layers, "extra": dict(OBJECTS)}


def assert_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert helpers.same(actual, expected)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, list):
        assert isinstance(actual, list)
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
    else:
        assert actual == expected


def split(directory: Path, name: str) -> None:
    """Cuts a tensor in two chunks, as two ranks would have saved it."""
    document = json.loads((directory / "dcp.json").read_text())
    entry = document["tensors"][name]
    rows, *rest = entry["shape"]
    file = directory / document["files"][entry["chunks"][0]["file"]]
    tensors = safetensors.torch.load_file(file)
    upper, lower = tensors[name][: rows // 3].clone(), tensors[name][rows // 3 :].clone()
    penstock.save({**tensors, name: upper}, file, checksums=True)
    penstock.save({name: lower}, directory / "second.safetensors", checksums=True)
    document["files"].append("second.safetensors")
    entry["chunks"] = [
        {"file": entry["chunks"][0]["file"], "offsets": [0] * (1 + len(rest)), "shape": [rows // 3, *rest]},
        {"file": len(document["files"]) - 1, "offsets": [rows // 3, *[0] * len(rest)], "shape": list(lower.shape)},
    ]
    (directory / "dcp.json").write_text(json.dumps(document))
    (directory / "model.safetensors.index.json").unlink()


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    return make_state()


@pytest.fixture(params=["ours", "chunks", "torch"])
def directory(request: pytest.FixtureRequest, state: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "step"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if request.param == "torch":
            dcp.save(state, checkpoint_id=path)
        else:
            dcp.save(state, storage_writer=penstock.dcp.StorageWriter(path))
    if request.param == "chunks":
        split(path, "model.rows")
    return path


def test_a_checkpoint_is_loaded_whole(directory: Path, state: dict[str, Any]) -> None:
    assert_same(penstock.dcp.load(directory), state)


def test_a_torch_file_has_all_that_was_saved(directory: Path, state: dict[str, Any], tmp_path: Path) -> None:
    done = penstock.dcp.convert(directory, tmp_path / "all.pt")
    assert done.left_out == []
    assert done.tensors == 12
    assert_same(torch.load(tmp_path / "all.pt", weights_only=True), state)


def test_a_safetensors_file_has_the_tensors(directory: Path, state: dict[str, Any], tmp_path: Path) -> None:
    done = penstock.dcp.convert(directory, tmp_path / "all.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "all.safetensors")
    assert sorted(done.left_out) == ["extra.betas", "extra.names", "extra.rng", "extra.step", "layers.1.flag"]
    assert done.tensors == len(loaded) == 12
    for name, tensor in state["model"].items():
        assert helpers.same(loaded[f"model.{name}"], tensor)
    assert helpers.same(loaded["layers.1.weight"], state["layers"][1]["weight"])


def test_files_become_directories_and_files_again(state: dict[str, Any], tmp_path: Path) -> None:
    penstock.save(state, tmp_path / "all.pt")
    penstock.dcp.convert(tmp_path / "all.pt", tmp_path / "step")
    assert_same(penstock.dcp.load(tmp_path / "step"), state)
    penstock.save(state["model"], tmp_path / "model.safetensors")
    penstock.dcp.convert(tmp_path / "model.safetensors", tmp_path / "flat")
    assert_same(penstock.dcp.load(tmp_path / "flat"), state["model"])
    assert_same(dict(penstock.load(tmp_path / "flat")), state["model"])


def test_a_directory_of_torch_becomes_one_of_ours(directory: Path, state: dict[str, Any], tmp_path: Path) -> None:
    penstock.dcp.convert(directory, tmp_path / "other")
    assert (tmp_path / "other" / "dcp.json").exists()
    assert_same(penstock.dcp.load(tmp_path / "other"), state)


def test_targets_that_exist_are_kept_unless_asked(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "all.pt").write_text("something else")
    with pytest.raises(penstock.ArgumentError, match=r"all\.pt: exists; overwrite=True replaces it"):
        penstock.dcp.convert(directory, tmp_path / "all.pt")
    assert (tmp_path / "all.pt").read_text() == "something else"
    penstock.dcp.convert(directory, tmp_path / "all.pt", overwrite=True)
    with pytest.raises(penstock.ArgumentError, match="penstock.convert"):
        penstock.dcp.convert(tmp_path / "all.pt", tmp_path / "other.pt")
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    with pytest.raises(penstock.ArgumentError, match="a checkpoint of a list"):
        penstock.dcp.convert(tmp_path / "list.pt", tmp_path / "listed")


def run_module(*arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.dcp", "convert", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_converts_and_tells_what_is_wrong(tmp_path: Path) -> None:
    penstock.save({"a": torch.ones(4)}, tmp_path / "a.safetensors")
    done = run_module(tmp_path / "a.safetensors", tmp_path / "step")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'step'}: 1 tensors, 16 bytes\n")
    failed = run_module(tmp_path / "missing", tmp_path / "other")
    assert failed.returncode == 1
    assert failed.stderr.count("\n") == 1
    assert failed.stderr.startswith(f"penstock.dcp: {tmp_path / 'missing'}")


@pytest.mark.parametrize("directory", ["chunks", "torch"], indirect=True)
def test_those_who_read_files_alone_are_told_what_to_do(directory: Path) -> None:
    with pytest.raises(
        penstock.UnsupportedError, match=r"step: .* `python -m penstock.dcp convert` makes a file of it"
    ):
        penstock.load(directory)
    command = find_command()
    if command is None:
        pytest.skip("the native command is not installed")
    done = subprocess.run([command, "ls", directory], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "python -m penstock.dcp convert" in done.stderr


def test_paths_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    penstock.save({"a": torch.ones(4), "b": torch.ones(4)}, tmp_path / "a.safetensors")
    penstock.dcp.convert(tmp_path / "a.safetensors", tmp_path / "step")
    document = json.loads((tmp_path / "step" / "dcp.json").read_text())
    for paths in ({"a": ["x"], "b": ["x", "y"]}, {"a": ["x", 0], "b": ["x", "y"]}, {"a": ["x", 1 << 40], "b": ["b"]}):
        (tmp_path / "step" / "dcp.json").write_text(json.dumps({**document, "paths": paths}))
        with pytest.raises(penstock.FormatError, match="does not fit those of others"):
            penstock.dcp.load(tmp_path / "step")
    shutil.rmtree(tmp_path / "step")
    assert os.listdir(tmp_path) == ["a.safetensors"]
