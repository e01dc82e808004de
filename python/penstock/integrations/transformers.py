"""Checkpoints of transformers' Trainer, saved in the background and committed whole.

    from penstock.integrations.transformers import PenstockCallback

    checkpoints = PenstockCallback("run", keep=2)
    arguments = TrainingArguments("out", save_strategy="steps", save_steps=500)
    trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[checkpoints])
    trainer.train(resume_from_checkpoint=checkpoints.latest())

The Trainer's arguments say when to save, and the callback saves in its place. A step has the files that the Trainer's
own checkpoints have (model.safetensors, optimizer.pt, scheduler.pt, rng_state.pth, trainer_state.json), so the Trainer
resumes from it by itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .._manager import CheckpointManager
from .._rng import numpy_rng_state
from .._save import save
from ..errors import ArgumentError

if TYPE_CHECKING:
    from .._options import Path as AnyPath

__all__ = ["PenstockCallback"]

_TrainerCallback: Any = import_module("transformers").TrainerCallback


class PenstockCallback(_TrainerCallback):  # type: ignore[misc]
    """Saves in place of the Trainer, whenever that would save, as steps of a `penstock.CheckpointManager`.

    directory, keep, every, when_busy, durable, timeout: as of the manager, which is `manager`. Training goes on as soon
    as a snapshot is taken; what fails in the background ends training at the next save, or at its end.

    Models of PEFT are saved as their adapters. Not for FSDP and DeepSpeed, which have checkpoints of their own, and not
    with load_best_model_at_end. The states of other callbacks (the counter of EarlyStoppingCallback) are not saved, and
    what the Trainer logs at the very step that is saved is not in trainer_state.json.
    """

    def __init__(
        self,
        directory: AnyPath,
        *,
        keep: int | None = None,
        every: int | None = None,
        background: bool = True,
        **arguments: Any,
    ) -> None:
        self.manager = CheckpointManager(directory, keep=keep, every=every, per_rank=(), **arguments)
        self._background = background

    def latest(self) -> str | None:
        """What to give to ``train(resume_from_checkpoint=...)``: the latest step, or None where there is none."""
        step = self.manager.latest()
        return None if step is None else str(self.manager.path(step))

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Refuses what it can't save."""
        if args.deepspeed or args.fsdp:
            raise ArgumentError(
                "PenstockCallback: models that DeepSpeed or FSDP split are saved by "
                "penstock.fastpersist.CheckpointEngine and penstock.dcp"
            )
        if args.load_best_model_at_end:
            raise ArgumentError("PenstockCallback: load_best_model_at_end needs the Trainer's own checkpoints")

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
        """Saves, where the Trainer would."""
        return self._take_over(args, state, control, others)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
        """Saves, where the Trainer would."""
        return self._take_over(args, state, control, others)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Waits for the last save."""
        self.manager.wait()

    def _take_over(self, args: Any, state: Any, control: Any, others: dict[str, Any]) -> Any:
        if control.should_save:
            control.should_save = False
            entries, write = _checkpoint(args, state, control, others)
            save_step: Callable[..., object] = self.manager.save_async if self._background else self.manager.save
            save_step(state.global_step, entries, write=write)
        return control


def _checkpoint(
    args: Any, state: Any, control: Any, others: dict[str, Any]
) -> tuple[dict[str, Any], Callable[[Path], None]]:
    """What the Trainer has in a checkpoint: the large files, and what writes the small ones."""
    model = getattr(others["model"], "module", others["model"])  # what DistributedDataParallel wraps
    is_adapter = hasattr(model, "peft_config")
    entries: dict[str, Any] = {} if is_adapter else {"model.safetensors": model}
    if not args.save_only_model:
        optimizer = others["optimizer"]
        entries.update({"optimizer.pt": optimizer, "scheduler.pt": others["lr_scheduler"]})
        scaler = getattr(optimizer, "scaler", None)
        if scaler is not None:
            entries["scaler.pt"] = scaler
    generators = _gather(_random_state())
    state.stateful_callbacks["TrainerControl"] = control.state()

    def write(folder: Path) -> None:
        described: list[Any] = [others.get("processing_class")]
        described += [model] if is_adapter else [getattr(model, name, None) for name in ("config", "generation_config")]
        for each in described:
            if hasattr(each, "save_pretrained"):
                each.save_pretrained(folder)
        state.save_to_json(str(folder / "trainer_state.json"))
        for rank, generator in enumerate(generators):
            name = "rng_state.pth" if len(generators) == 1 else f"rng_state_{rank}.pth"
            save(generator, folder / name, format="torch", durable=False)

    return entries, write


def _random_state() -> dict[str, Any]:
    """By the names, and in the form, that the Trainer restores."""
    found = {"python": random.getstate(), "numpy": numpy_rng_state(), "cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        is_alone = not (dist.is_available() and dist.is_initialized())
        found["cuda"] = torch.cuda.get_rng_state() if is_alone else torch.cuda.get_rng_state_all()
    return found


def _gather(value: Any) -> list[Any]:
    """Every rank's."""
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone
