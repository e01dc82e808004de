"""penstock convert makes directories for torch.distributed.checkpoint, and joins the chunks in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cli_files as files
from cli_command import Run


def read_description(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory / "dcp.json").read_text())
    return document


def test_a_file_becomes_a_directory_and_a_file_again(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors", metadata={"format": "pt"})
    made = run("convert", "a.safetensors", "run/", "--format", "dcp", "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["tensors"] == 4
    assert files.names_in(tmp_path / "run") == ["dcp.json", "model.safetensors", "model.safetensors.index.json"]
    assert set(read_description(tmp_path / "run")["tensors"]) == set(files.sample_tensors())
    joined = run("convert", "run", "b.safetensors")
    assert joined.returncode == 0, joined.stderr
    assert files.read_file(tmp_path / "b.safetensors") == (files.sample_tensors(), {"format": "pt"})
    assert run("verify", "run").returncode == 0
    again = run("convert", "a.safetensors", "run", "--format", "dcp")
    assert again.returncode == 1
    assert again.stderr == "penstock: run: exists already; --force replaces it\n"
    assert run("convert", "a.safetensors", "run", "--format", "dcp", "--force").returncode == 0


def test_chunks_are_joined_and_values_that_are_no_tensors_are_told(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "step"
    folder.mkdir()
    files.write_file(folder / "one.safetensors", {"w": ("U8", [2, 2], bytes([0, 1, 4, 5]))})
    files.write_file(folder / "two.safetensors", {"w": ("U8", [2, 2], bytes([2, 3, 6, 7]))})
    chunks = [{"file": number, "offsets": [0, 2 * number], "shape": [2, 2]} for number in (0, 1)]
    document = {
        "format": "penstock.dcp",
        "version": 1,
        "files": ["one.safetensors", "two.safetensors"],
        "tensors": {"w": {"dtype": "U8", "shape": [2, 4], "chunks": chunks}},
        "objects": {"step": 0},
    }
    (folder / "dcp.json").write_text(json.dumps(document))
    done = run("convert", "step", "all.safetensors")
    assert done.returncode == 0, done.stderr
    assert done.stderr == 'note: values that are no tensors are left out: "step"\n'
    tensors, _ = files.read_file(tmp_path / "all.safetensors")
    assert tensors == {"w": ("U8", [2, 4], bytes(range(8)))}
    document["tensors"]["w"]["chunks"][1]["offsets"] = [0, 1]  # type: ignore[index]
    (folder / "dcp.json").write_text(json.dumps(document))
    failed = run("convert", "step", "other.safetensors")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == 'penstock: step/dcp.json: tensor "w": two chunks have the elements at [0, 1]\n'
    assert files.names_in(tmp_path) == ["all.safetensors", "step"]
    listed = run("ls", "step")
    assert listed.returncode == 1
    assert "`penstock convert` makes a file of it" in listed.stderr
