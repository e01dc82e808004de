"""The committed stub of the extension module is the one that nanobind makes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import penstock
import pytest


def test_the_stub_is_up_to_date(tmp_path: Path) -> None:
    pytest.importorskip("nanobind")
    made = tmp_path / "_core.pyi"
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "penstock._core", "-o", str(made)], check=True
    )
    committed = Path(penstock.__file__).with_name("_core.pyi")
    assert _without_buffer(made.read_text()) == committed.read_text()


def _without_buffer(stub: str) -> str:
    """From Python 3.12 on, whatever has a buffer has a method that says so."""
    return re.sub(r"    def __buffer__\(.*?\n\n(?=    )", "", stub, flags=re.DOTALL)


def test_the_package_says_that_it_is_typed() -> None:
    assert Path(penstock.__file__).with_name("py.typed").exists()
