"""The examples run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"
LAST_LINES = {
    "load.py": "a model that had no memory now has ",
    "save_async.py": "['step-010.safetensors', 'step-020.safetensors', 'step-030.safetensors']",
    "slicing.py": "rows: (1024, 1024) columns: (1024, 1024) a column: (2048,)",
    "stream.py": "layers.9.weight ",
    "train.py": "checkpoints: [50, 60]",
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(LAST_LINES)


@pytest.mark.parametrize("name", LAST_LINES)
def test_an_example_does_what_it_says(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, check=True, env=environment, timeout=120
    )
    assert result.stdout.splitlines()[-1].startswith(LAST_LINES[name])
