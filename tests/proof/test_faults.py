"""The short form of `make faults`, and whether its harness notices the bugs that it is there for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(program: str, *arguments: str) -> tuple[int, str]:
    """In a process of its own, which forks: with one thread, and without what the tests have loaded."""
    command = [sys.executable, str(ROOT / program), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=environment)
    if "can't be tested here" in done.stderr:
        pytest.skip(done.stderr.strip())
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("part", ["calls", "kernels", "forks"])
def test_loads_and_saves_fail_well(part: str) -> None:
    status, text = run("proof/faults.py", part, "--short")
    print(text)  # what was skipped, and why
    assert status == 0, text


def test_the_harness_notices_planted_bugs() -> None:
    status, text = run("tests/proof/planted_faults.py")
    assert status == 0, text
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    assert found.pop("a careful saver") == []
    names_no_error = found.pop("tells no file")
    assert len(names_no_error) == 1
    assert {name: problems[0] if problems else "nothing" for name, problems in found.items()} == {
        "ignores a sync": "a sync failed, and nobody was told",
        "ignores a short write": "lost",
        "writes in place": "lost",
        "leaves its file": "leaves ['.m.tmp']",
        "leaves a descriptor": "it grows by 2, and else by 0",
        "hangs": "hung",
        "ignores a short read": "wrong bytes",
    }
