"""Pipelines and mixtures of experts, where not every rank saves the same files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import helpers
import pytest

RANK = Path(__file__).with_name("kinds_rank.py")
PATIENCE_SECONDS = 240

FILES = {
    "pipeline": [
        *(f"layer_0{layer}-model_states.pt" for layer in range(3)),
        *(f"mp_rank_0{rank}_model_states.pt" for rank in range(2)),
    ],
    "experts": [
        *(f"expp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(2)),
        *(f"layer_0_expert_{expert}_mp_rank_00_model_states.pt" for expert in range(2)),
        "mp_rank_00_model_states.pt",
    ],
}


@pytest.mark.parametrize("kind", list(FILES))
def test_it_is_saved_by_penstock_and_loads(tmp_path: Path, kind: str) -> None:
    environment = {**os.environ, **helpers.rendezvous()}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANK), str(rank), str(tmp_path), kind],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [0, 0], said
    for rank, text in enumerate(said):
        found = json.loads(text.splitlines()[-1])
        assert found["loaded"] == found["saved"]
        assert found["resumed"] == pytest.approx(found["losses"], rel=1e-6)
        assert found["step"] == 2
        assert len(found["told"]) == (rank == 0), found["told"]  # that data_parallel is left out
    assert (tmp_path / "latest").read_text() == "global_step2"
    assert sorted(path.name for path in (tmp_path / "global_step2").iterdir()) == FILES[kind]
