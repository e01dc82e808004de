from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import helpers
import pytest
import torch


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    """A small state dict of mixed types and ranks."""
    generator = torch.Generator().manual_seed(7)
    return {
        "embed.weight": torch.randn(50, 16, generator=generator).bfloat16(),
        "layers.0.weight": torch.randn(16, 16, generator=generator),
        "layers.0.bias": torch.randn(16, generator=generator),
        "layers.1.weight": torch.randn(16, 16, generator=generator).half(),
        "steps": torch.tensor(12345),
        "mask": torch.tensor([True, False, True]),
        "nothing": torch.empty(0, 4),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.fixture
def public_dir() -> Iterator[Path]:
    """A directory that an unprivileged user can reach (pytest's own is private)."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(directory)


@pytest.fixture
def no_leaks(tmp_path: Path) -> Iterator[None]:
    """Fails when a test leaves a descriptor open or a temporary file in its directory."""
    before = helpers.open_descriptors()
    yield
    assert helpers.open_descriptors() - before == set()
    leftovers = [name for _, _, names in os.walk(tmp_path) for name in names if name.startswith(".") or "tmp" in name]
    assert leftovers == []
