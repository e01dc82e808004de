"""PenstockCallback under transformers' own Trainer: killed and resumed, the run is the unbroken one bit for bit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import trainer_run
from penstock.integrations.transformers import PenstockCallback

LOSS = re.compile(r"^step (\d+): (\S+)$", re.MULTILINE)
FILES = ["config.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"]


def launch(directory: Path, dies_in: int, world: int = 1) -> tuple[list[dict[int, str]], list[int], str]:
    """Of each rank: its losses by step, and how it ended; and what rank 0 printed."""
    command = [sys.executable, trainer_run.__file__, str(directory), str(dies_in)]
    shared = helpers.rendezvous() | {"WORLD_SIZE": str(world)} if world > 1 else {}
    ranks = []
    for rank in range(world):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if world > 1 else {}
        ranks.append(
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **shared, **own, "ACCELERATE_USE_CPU": "true"},
            )
        )
    texts = [process.communicate(timeout=300) for process in ranks]
    codes = [process.returncode for process in ranks]
    assert all(code in (0, -signal.SIGKILL) for code in codes), texts
    losses = [{int(step): loss for step, loss in LOSS.findall(text)} for text, _ in texts]
    return losses, codes, texts[0][0]


@pytest.fixture(scope="module", params=[1, 2], ids=["1 rank", "2 ranks"])
def world(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_trainer_that_is_killed_goes_on_bit_for_bit(tmp_path: Path, world: int) -> None:
    for name in ("unbroken", "killed"):
        (tmp_path / name).mkdir()
    expected, codes, _ = launch(tmp_path / "unbroken", 0, world)
    assert codes == [0] * world
    assert all(sorted(losses) == list(range(1, trainer_run.STEPS + 1)) for losses in expected)
    first, codes, text = launch(tmp_path / "killed", 8, world)
    assert codes == [-signal.SIGKILL] * world
    assert "resumes from None" in text
    second, codes, text = launch(tmp_path / "killed", 0, world)
    assert codes == [0] * world
    resumed = int(re.findall(r"resumes from .*/step-(\d+)", text)[0])
    assert resumed in (4, 6)  # the step of the moment it was killed in may not have been committed
    for rank in range(world):
        assert sorted(second[rank]) == list(range(resumed + 1, trainer_run.STEPS + 1))
        assert {**first[rank], **second[rank]} == expected[rank]
    helpers.assert_same_tensors(
        torch.load(tmp_path / "killed" / "final.pt"), torch.load(tmp_path / "unbroken" / "final.pt")
    )


def test_a_step_has_what_a_checkpoint_of_the_trainer_has(tmp_path: Path) -> None:
    checkpoints = PenstockCallback(tmp_path / "run", keep=1)
    trainer = trainer_run.make_trainer(tmp_path, checkpoints)
    trainer.train()
    assert checkpoints.manager.steps() == [12]
    latest = Path(checkpoints.latest() or "")
    found = {path.name for path in latest.iterdir()}
    assert found >= {*FILES, "rng_state.pth"}
    assert json.loads((latest / "trainer_state.json").read_text())["global_step"] == 12
    assert not list((tmp_path / "out").glob("checkpoint-*"))
    saved = type(trainer.model).from_pretrained(latest).state_dict()
    helpers.assert_same_tensors(saved, trainer.model.state_dict())
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        penstock.load(latest / name)


def test_a_save_that_fails_ends_training_at_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    checkpoints = PenstockCallback(tmp_path / "run")
    trainer = trainer_run.make_trainer(tmp_path, checkpoints)

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(penstock.NoSpaceError, match="step-00000002: No space left on device"):
        trainer.train()
    assert trainer.state.global_step == 4


def test_what_it_can_not_save_is_refused_before_training(tmp_path: Path) -> None:
    checkpoints = PenstockCallback(tmp_path / "run")
    trainer = trainer_run.make_trainer(
        tmp_path, checkpoints, load_best_model_at_end=True, eval_strategy="steps", eval_steps=2
    )
    with pytest.raises(penstock.ArgumentError, match="load_best_model_at_end needs the Trainer's own checkpoints"):
        trainer.train()
    assert trainer.state.global_step == 0
