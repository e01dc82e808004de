"""Fits a tiny model with Lightning's Trainer, and prints the loss of every step; kills itself when told to.

lightning_run.py DIRECTORY STEP: the step in which to die; 0 for none.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it imports
    import lightning
import torch
from penstock.integrations.lightning import PenstockCheckpoint

STEPS = 12


class Batches:
    """Batches in an order that is its own, with a state: Lightning saves and restores that."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.position %= STEPS  # a new epoch, or the rest of one
        while self.position < STEPS:
            self.position += 1
            yield torch.full((4, 8), float(self.position % 5))

    def __len__(self) -> int:
        return STEPS

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Model(lightning.LightningModule):
    """Draws from torch's and Python's random generators in every step."""

    def __init__(self, dies_in: int = 0) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 8))
        self.dies_in = dies_in

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        step = self.trainer.global_step + 1
        if step == self.dies_in:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = self.layers(batch + random.random()).square().mean()
        print(f"step {step}: {loss.item()!r}", flush=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def make_trainer(directory: Path, checkpoints: PenstockCheckpoint, **arguments: Any) -> lightning.Trainer:
    return lightning.Trainer(
        default_root_dir=directory,
        callbacks=[checkpoints],
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        accelerator="cpu",
        devices=1,
        **{"max_epochs": 1, **arguments},
    )


def main(directory: Path, dies_in: int) -> None:
    torch.manual_seed(0)
    random.seed(0)
    model = Model(dies_in)
    checkpoints = PenstockCheckpoint(directory / "run", every_n_train_steps=2, keep=2)
    trainer = make_trainer(directory, checkpoints)
    print(f"resumes from {checkpoints.latest()}", flush=True)
    trainer.fit(model, Batches(), ckpt_path=checkpoints.latest())
    torch.save(model.state_dict(), directory / "final.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
