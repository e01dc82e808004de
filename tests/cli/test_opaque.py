"""What the command says of torch checkpoints that hold more than data."""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path

import pytest
from cli_command import Run

torch = pytest.importorskip("torch")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "m.ckpt"
    torch.save({"w": torch.arange(4.0), "args": argparse.Namespace(lr=0.1)}, path)
    return path


def test_ls_and_verify_name_what_is_opaque(run: Run, checkpoint: Path) -> None:
    for command in ("ls", "verify"):
        shown = run(command, checkpoint).stdout
        assert "OPAQUE" in shown
        assert "argparse.Namespace" in shown
    listed = json.loads(run("ls", checkpoint, "--json").stdout)
    assert listed["files"][0]["opaque"] == [{"path": "args", "name": "argparse.Namespace"}]
    verified = json.loads(run("verify", checkpoint, "--json").stdout)
    assert verified["opaque"] == [{"path": "args", "name": "argparse.Namespace"}]


def test_convert_takes_the_tensors_and_says_what_it_left(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run("convert", checkpoint, tmp_path / "m.safetensors")
    assert 'objects are left out, but for the tensors in them: "args" (argparse.Namespace)' in result.stderr
    assert "1 tensor," in run("ls", tmp_path / "m.safetensors").stdout


def test_a_compressed_file_is_one_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save({"w": torch.zeros(1000)}, path)
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    shown = run("ls", path).stdout
    assert "1 tensor, 1,000 parameters, 3.9 KiB  torch\n" in shown
    assert "files" not in shown
    refused = run("bench", path)
    assert refused.returncode == 1
    assert "has tensors that are compressed or inside its pickle" in refused.stderr
