"""The committed stub of the extension module is the one that nanobind makes."""

from __future__ import annotations

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
    assert made.read_text() == committed.read_text()


def test_the_package_says_that_it_is_typed() -> None:
    assert Path(penstock.__file__).with_name("py.typed").exists()
