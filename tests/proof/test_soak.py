"""Everything at once for 25 seconds: the short form of proof/soak.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proof"))


def test_nothing_is_wrong_lost_or_left_when_everything_happens_at_once() -> None:
    pytest.importorskip("torch")
    command = [sys.executable, ROOT / "proof" / "soak.py", "--short", "--processes", "2", "--threads", "3"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def test_what_grows_from_rest_to_rest_is_a_finding() -> None:
    import soak

    flat = [{"MiB": 500.0 + i % 3, "descriptors": 20.0, "threads": 5.0} for i in range(12)]
    assert soak.leaks("p", flat) == []
    grows = [{**rest, "descriptors": 20.0 + number} for number, rest in enumerate(flat)]
    assert soak.leaks("p", grows) == ["p: descriptors went from 24 to 30"]
    heavy = [{**rest, "MiB": 500.0 + 10 * number} for number, rest in enumerate(flat)]
    assert soak.leaks("p", heavy) == ["p: MiB went from 540 to 600"]
