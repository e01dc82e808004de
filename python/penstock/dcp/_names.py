"""What files of a checkpoint directory are called."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import ArgumentError

METADATA = "dcp.json"
INDEX = "model.safetensors.index.json"
TORCH_METADATA = ".metadata"
_LONGEST_NAME = 255  # the system's limit

_OF_CHECKPOINTS = re.compile(
    r".+\.(safetensors|pickles|distcp)|.+\.(index|seal)\.json|dcp\.json|\.metadata(\.tmp)?", re.DOTALL
)


def tensor_file(rank: int, world: int, number: int) -> str:
    """A rank's file with tensors; it has a second one only where it holds two chunks of one tensor."""
    return f"model-{rank + 1:05}-of-{world:05}{'' if number == 0 else f'-{number + 1}'}.safetensors"


def object_file(rank: int, world: int) -> str:
    """A rank's file with what is no tensor: pickles, each as a tensor of bytes in a safetensors file."""
    return f"objects-{rank + 1:05}-of-{world:05}.pickles"


def is_plain_name(name: str) -> bool:
    """Whether it names a file of the directory itself."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name and len(name) <= _LONGEST_NAME


def check_replaceable(target: Path, overwrite: bool) -> None:
    """Refuses to put a checkpoint where something else is."""
    try:
        with os.scandir(target) as entries:
            found = sorted((entry.name, entry.is_file(follow_symlinks=False)) for entry in entries)
    except FileNotFoundError:
        return
    except NotADirectoryError as problem:
        raise ArgumentError(f"{target}: is a file, and no directory") from problem
    if found and not overwrite:
        raise ArgumentError(f"{target}: exists; overwrite=True replaces the checkpoint in it")
    others = [name for name, is_file in found if not (is_file and _OF_CHECKPOINTS.fullmatch(name))]
    if others:
        raise ArgumentError(f"{target}: is not replaced by a checkpoint, because it holds {others[0]!r}, which is none")
