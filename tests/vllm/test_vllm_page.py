"""The example of docs/guides/vllm.md runs as it stands there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import page_blocks

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "vllm.md"


def test_the_example_generates_text(models: Path, tmp_path: Path) -> None:
    (tmp_path / "my-model").symlink_to(models / "shards")
    command = [sys.executable, page_blocks.__file__, str(PAGE)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Loading weights with penstock: 100%" in done.stderr
    assert done.stdout.strip()
