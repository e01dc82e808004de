"""Files made to attack whoever reads them, a sample of each family: the short form of proof/hostile.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proof"))

PROGRAM = Path(sys.executable).with_name("penstock")

# Many files of a family are alike: every so many-th is tried.
STEPS = {
    "pickles that call": 90,
    "pickles in other places": 4,
    "opcodes": 9,
    "tensors that reach out": 4,
    "zip tricks": 5,
    "files of two formats": 9,
    "safetensors headers": 11,
    "FlashPack footers": 14,
    "seals": 3,
    "indexes": 8,
    "chunks of ranks": 13,
    "links": 3,
    "what is no file": 9,
    "journals": 3,
}


@pytest.fixture(scope="module")
def hostile() -> object:
    pytest.importorskip("torch")
    if not PROGRAM.is_file():
        pytest.skip("the penstock command is not installed beside this Python")
    import hostile

    return hostile


def test_every_family_is_sampled_or_too_large_for_that(hostile: object) -> None:
    assert set(STEPS) | set(hostile.SHORT_WITHOUT) == set(hostile.FAMILIES)  # type: ignore[attr-defined]


def test_hostile_files_do_nothing_but_be_refused(hostile: object) -> None:
    """In processes of their own: by Python, under an audit hook, and by the command."""
    import subprocess

    families = [part for name, step in STEPS.items() for part in ("--family", name, "--step", str(step))]
    command = [sys.executable, ROOT / "proof" / "hostile.py", "--patient", *families]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
