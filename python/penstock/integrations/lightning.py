"""Checkpoints of Lightning's Trainer, saved in the background and committed whole.

    from penstock.integrations.lightning import PenstockCheckpoint

    checkpoints = PenstockCheckpoint("run", every_n_train_steps=500, keep=2)
    trainer = lightning.Trainer(callbacks=[checkpoints])
    trainer.fit(model, loader, ckpt_path=checkpoints.latest())

A step has Lightning's own checkpoint as `lightning.ckpt`, which its Trainer resumes from by itself, and the state of
the random number generators, which Lightning does not keep and the callback puts back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._manager import CheckpointManager
from .._rng import Rng
from ..errors import ArgumentError

if TYPE_CHECKING:
    from .._options import Path as AnyPath

__all__ = ["PenstockCheckpoint"]


def _find_callbacks() -> Any:
    """Lightning has two names; a Trainer of one takes no callbacks of the other."""
    name = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    try:
        return import_module(f"{name}.callbacks")
    except ModuleNotFoundError:
        return import_module("pytorch_lightning.callbacks")


_Checkpoint: Any = _find_callbacks().Checkpoint
_ENTRY = "lightning.ckpt"


class PenstockCheckpoint(_Checkpoint):  # type: ignore[misc]
    """Saves steps of a `penstock.CheckpointManager` while Lightning's Trainer fits a model.

    every_n_train_steps: save when so many steps of the optimizer have been made; None leaves that to the epochs.
    every_n_epochs: save at the end of so many epochs.
    directory, keep, every, when_busy, durable, timeout: as of the manager, which is `manager`. Training goes on as soon
        as a snapshot is taken; what fails in the background ends training at the next save, or at its end.

    For strategies that have the whole model on every rank (one device, DDP); the others save shards of their own.
    """

    def __init__(
        self,
        directory: AnyPath,
        *,
        every_n_train_steps: int | None = None,
        every_n_epochs: int | None = None,
        keep: int | None = None,
        every: int | None = None,
        background: bool = True,
        **arguments: Any,
    ) -> None:
        for name, value in (("every_n_train_steps", every_n_train_steps), ("every_n_epochs", every_n_epochs)):
            if value is not None and value < 1:
                raise ArgumentError(f"{name} must be 1 or more, not {value!r}")
        if every_n_train_steps is None and every_n_epochs is None:
            raise ArgumentError("say when to save: every_n_train_steps or every_n_epochs")
        self.manager = CheckpointManager(directory, keep=keep, every=every, per_rank=("rng",), **arguments)
        self._every_n_train_steps = every_n_train_steps
        self._every_n_epochs = every_n_epochs
        self._background = background
        self._last_saved = 0
        self._resumed: int | None = None

    def latest(self) -> str | None:
        """What to give to ``fit(ckpt_path=...)``: the checkpoint of the latest step, or None where there is none."""
        step = self.manager.latest()
        return None if step is None else str(self.manager.path(step) / _ENTRY)

    def state_dict(self) -> dict[str, Any]:
        """Which step it is: Lightning keeps that in the checkpoint."""
        return {"step": self._last_saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Notes which step is resumed from."""
        self._resumed = self._last_saved = state_dict["step"]

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuses what it can't save."""
        name = type(trainer.strategy).__name__
        if any(word in name for word in ("FSDP", "DeepSpeed", "ModelParallel")):
            raise ArgumentError(f"PenstockCheckpoint: {name} splits the model, and saves the parts itself")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Puts the random number generators back."""
        step, self._resumed = self._resumed, None
        if step is not None and step in self.manager.steps():
            self.manager.restore(step, into={"rng": Rng()})

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Saves, if it is time."""
        if self._every_n_train_steps is not None and trainer.global_step % self._every_n_train_steps == 0:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Saves, if it is time."""
        if self._every_n_epochs is not None and (trainer.current_epoch + 1) % self._every_n_epochs == 0:
            self._save(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Waits for the last save."""
        self.manager.wait()

    def _save(self, trainer: Any) -> None:
        step = trainer.global_step
        if trainer.sanity_checking or step == self._last_saved:  # batches whose gradients are only added up
            return
        self._last_saved = step
        state = {_ENTRY: trainer._checkpoint_connector.dump_checkpoint(weights_only=False), "rng": Rng()}
        save_step: Callable[..., object] = self.manager.save_async if self._background else self.manager.save
        save_step(step, state)
