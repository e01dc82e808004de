"""Running python -m penstock.flashpack, and something to run it on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from penstock.flashpack import _command as command


def make_state() -> dict[str, torch.Tensor]:
    return {
        "embed.weight": torch.randn(5, 3),
        "head.weight": torch.randn(5, 3).bfloat16(),
        "head.bias": torch.randn(5),
        "steps": torch.tensor(12),
    }


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """The command in this process: its exit code, and what it printed."""
    try:
        code = command.main([str(argument) for argument in arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def run_module(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.flashpack", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )
