"""The example of docs/guides/deepspeed.md, as it stands there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import helpers

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "deepspeed.md"
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}

sys.path.insert(0, str(ROOT / "tests" / "repo"))

from page_blocks import code_blocks  # noqa: E402


def test_the_example_runs_and_goes_on_where_it_was(tmp_path: Path) -> None:
    (example,) = (block.code for block in code_blocks(PAGE.read_text()) if block.language == "python")
    for steps in ([2, 4], [6, 8]):
        done = subprocess.run(
            [sys.executable, "-c", example],
            check=False,
            cwd=tmp_path,
            env={**os.environ, **ALONE, **helpers.rendezvous()},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        checkpoints = tmp_path / "checkpoints"
        assert (checkpoints / "latest").read_text() == f"global_step{steps[-1]}"
        for step in steps:
            names = sorted(path.name for path in (checkpoints / f"global_step{step}").iterdir())
            assert names == ["bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"]
