"""PenstockCheckpoint under Lightning's own Trainer: killed and resumed, the run is the unbroken one bit for bit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import helpers
import penstock
import pytest
import torch

pytest.importorskip("lightning", reason="lightning is not installed")

import lightning_run
from penstock.integrations.lightning import PenstockCheckpoint

LOSS = re.compile(r"^step (\d+): (\S+)$", re.MULTILINE)


def launch(directory: Path, dies_in: int) -> tuple[dict[int, str], int, str]:
    """The losses by step, how it ended, and what it printed."""
    directory.mkdir(exist_ok=True)
    command = [sys.executable, lightning_run.__file__, str(directory), str(dies_in)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=dict(os.environ))
    assert result.returncode in (0, -signal.SIGKILL), result.stderr
    return {int(step): loss for step, loss in LOSS.findall(result.stdout)}, result.returncode, result.stdout


def test_a_trainer_that_is_killed_goes_on_bit_for_bit(tmp_path: Path) -> None:
    expected, code, _ = launch(tmp_path / "unbroken", 0)
    assert code == 0
    assert sorted(expected) == list(range(1, lightning_run.STEPS + 1))
    first, code, text = launch(tmp_path / "killed", 8)
    assert code == -signal.SIGKILL
    assert "resumes from None" in text
    second, code, text = launch(tmp_path / "killed", 0)
    assert code == 0
    resumed = int(re.findall(r"resumes from .*/step-(\d+)/lightning.ckpt", text)[0])
    assert resumed in (4, 6)  # the step of the moment it was killed in may not have been committed
    assert sorted(second) == list(range(resumed + 1, lightning_run.STEPS + 1))
    assert {**first, **second} == expected
    finals = [torch.load(tmp_path / name / "final.pt") for name in ("killed", "unbroken")]
    helpers.assert_same_tensors(*finals)


@pytest.mark.filterwarnings("ignore")  # of Lightning
def test_epochs_are_saved_and_checkpoints_are_those_of_lightning(tmp_path: Path) -> None:
    checkpoints = PenstockCheckpoint(tmp_path / "run", every_n_epochs=2, background=False)
    model = lightning_run.Model()
    lightning_run.make_trainer(tmp_path, checkpoints, max_epochs=5).fit(model, lightning_run.Batches())
    assert checkpoints.manager.steps() == [2 * lightning_run.STEPS, 4 * lightning_run.STEPS]
    again = lightning_run.Model.load_from_checkpoint(checkpoints.latest(), weights_only=True)
    assert again.state_dict().keys() == model.state_dict().keys()
    assert penstock.load(checkpoints.latest())["global_step"] == 4 * lightning_run.STEPS


@pytest.mark.filterwarnings("ignore")  # of Lightning
def test_a_save_that_fails_ends_training_at_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    checkpoints = PenstockCheckpoint(tmp_path / "run", every_n_train_steps=2)
    trainer = lightning_run.make_trainer(tmp_path, checkpoints)

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(penstock.NoSpaceError, match="step-00000002: No space left on device"):
        trainer.fit(lightning_run.Model(), lightning_run.Batches())
    assert trainer.global_step == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "say when to save: every_n_train_steps or every_n_epochs"),
        ({"every_n_epochs": 0}, "every_n_epochs must be 1 or more, not 0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(tmp_path: Path, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(penstock.ArgumentError, match=message):
        PenstockCheckpoint(tmp_path, **arguments)
