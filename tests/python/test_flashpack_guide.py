"""The code of docs/flashpack.md runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models

GUIDE = Path(__file__).parents[2] / "docs" / "flashpack.md"


def blocks(language: str) -> list[str]:
    """The blocks of a language, but for those that say they are not run."""
    found = re.findall(rf"(<!-- not run -->\n)?```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return [code for skipped, code in found if not skipped]


def test_the_guides_code_runs(tmp_path: Path) -> None:
    assert tiny_models.transformers
    code = "\n".join(blocks("python"))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    arguments = [sys.executable, "-c", code]
    result = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "FlashPackDDPMPipeline FlashPackUNet2DModel torch.float16" in result.stdout.splitlines()
    command = shutil.which("penstock-flashpack", path=os.path.dirname(sys.executable))
    if command is None:
        pytest.skip("penstock-flashpack is not installed beside this interpreter")
    for line in "".join(blocks("sh")).splitlines():
        subprocess.run([command, *line.split()[1:]], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    assert (tmp_path / "small.safetensors").is_file()
