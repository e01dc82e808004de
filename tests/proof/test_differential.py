"""A few thousand mutated files for penstock and for the libraries that their formats come from: the short form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "proof" / "differential.py"


@pytest.mark.parametrize("readers", ["safetensors", "zip", "legacy", "FlashPack"])
def test_penstock_and_the_library_say_the_same_of_mutated_files(readers: str) -> None:
    command = [sys.executable, PROGRAM, "--short", "--only", readers]
    result = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace", timeout=600)
    if "skipped" in result.stdout and "| " + readers not in result.stdout:
        pytest.skip(f"{readers}: the library is not there (scripts/setup.sh bench)")
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
