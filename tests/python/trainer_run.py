"""Trains a tiny model with transformers' Trainer, and prints the loss of every step; kills itself when told to.

trainer_run.py DIRECTORY STEP: the step in which to die; 0 for none.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from penstock.integrations.transformers import PenstockCallback
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

STEPS = 12


class Sentences(torch.utils.data.Dataset[Any]):
    """Random tokens, the same each time."""

    def __init__(self) -> None:
        self.tokens = torch.randint(0, 64, (40, 8), generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[number], "labels": self.tokens[number]}


class Telling(Trainer):  # type: ignore[misc]
    """Prints the loss of each step, and dies in one."""

    dies_in = 0

    def training_step(self, *arguments: Any, **others: Any) -> torch.Tensor:
        loss = super().training_step(*arguments, **others)
        step = self.state.global_step + 1
        if step == self.dies_in:
            os.kill(os.getpid(), signal.SIGKILL)
        print(f"step {step}: {loss.item()!r}", flush=True)
        return loss


def make_trainer(directory: Path, checkpoints: PenstockCallback, **arguments: Any) -> Telling:
    torch.manual_seed(0)
    small = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**small, num_attention_heads=4, attention_dropout=0.2))
    settings = TrainingArguments(
        str(directory / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_steps=3,
        save_strategy="steps",
        save_steps=2,
        **arguments,
    )
    return Telling(model, settings, train_dataset=Sentences(), eval_dataset=Sentences(), callbacks=[checkpoints])


def main(directory: Path, dies_in: int) -> None:
    checkpoints = PenstockCallback(directory / "run", keep=2)
    trainer = make_trainer(directory, checkpoints)
    trainer.dies_in = dies_in
    print(f"resumes from {checkpoints.latest()}", flush=True)
    trainer.train(resume_from_checkpoint=checkpoints.latest())
    if trainer.args.process_index == 0:
        torch.save(trainer.model.state_dict(), directory / "final.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
