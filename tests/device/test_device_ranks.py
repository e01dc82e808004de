"""Saves and loads by several processes, each with a device of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import device_rank
import penstock
import pytest
import torch
from device_states import bytes_here, make_state, save_state
from helpers import rendezvous

WORLD = 2
PATIENCE_SECONDS = 150


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks have left. Each has checked what it loaded."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, **rendezvous()}
    command = [sys.executable, device_rank.__file__]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(WORLD), str(folder)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(WORLD)
    ]
    try:
        said = [process.communicate(timeout=PATIENCE_SECONDS)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [0] * WORLD, "\n".join(said)
    return folder


@pytest.mark.parametrize("suffix", ["safetensors", "flashpack"])
def test_ranks_write_the_file_that_the_host_would(directory: Path, tmp_path: Path, suffix: str) -> None:
    alone = save_state(tmp_path, suffix, make_state())
    assert (directory / f"model.{suffix}").read_bytes() == alone.read_bytes()


@pytest.mark.parametrize("name", ["model.pt", "decoupled.pt"])
def test_torch_reads_what_ranks_wrote(directory: Path, name: str) -> None:
    loaded = torch.load(directory / name, map_location="cpu", weights_only=True)
    assert {key: bytes_here(tensor) for key, tensor in loaded.items()} == {
        key: bytes_here(tensor) for key, tensor in make_state().items()
    }


def test_no_rank_leaves_anything_else(directory: Path) -> None:
    found = sorted(path.name for path in directory.iterdir())
    assert found == ["decoupled.pt", "model.flashpack", "model.pt", "model.safetensors"]
    assert list(penstock.load(directory / "model.safetensors")) != []
