"""Which checkpoints a run needs, by the names that races give them, and that they are there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import model
from runner import Input, MeasurementError

FILES = {
    "many": "many.safetensors",
    "many-torch": "many-torch.safetensors",
    "tiny": "tiny.safetensors",
    "mib": "one-mib.safetensors",
    "gpt2": "gpt2.safetensors",
}
SIZED = {"model": "model", "moe": "moe", "one": "one", "shards": "shards"}
COPIES = 5  # room for the model in its other formats, and for one that is saved


def tensors_of(key: str, gib: float) -> list[model.Tensor]:
    """What a run with a model of this size races under a name.

    Of one tensor there are two for each of the model's bytes.
    """
    makers: dict[str, Callable[[], list[model.Tensor]]] = {
        "model": lambda: model.transformer_of(gib),
        "shards": lambda: model.transformer_of(gib) if gib >= 0.5 else model.blocks(round(1024 * gib)),
        "moe": lambda: model.mixture_of_experts(gib),
        "one": lambda: model.one_tensor(2 * gib),
        "many": model.many_small,
        "many-torch": lambda: model.many_small(20_000),
        "tiny": model.tiny,
        "mib": model.one_mib,
        "gpt2": model.gpt2,
    }
    return makers[key]()


def place_of(key: str, gib: float, directory: Path) -> Path:
    if key in FILES:
        return directory / FILES[key]
    return directory / f"{SIZED[key]}-{gib:g}GiB{'' if key == 'shards' else '.safetensors'}"


def ensure(keys: Iterable[str], gib: float, directory: Path) -> dict[str, Input]:
    """Makes what is not there yet."""
    directory.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(directory).free < COPIES * gib * model.GIB:
        raise MeasurementError(
            f"{directory} has too little room: the models and a saved copy need {COPIES * gib:g} GiB"
        )
    made = {}
    for key in sorted(keys):
        place, tensors = place_of(key, gib, directory), tensors_of(key, gib)
        make = model.ensure_shards if key == "shards" else model.ensure
        made[key] = Input(place, make(place, tensors))
    return made
