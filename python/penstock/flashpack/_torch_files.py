"""torch.save, atomic and durable."""

from __future__ import annotations

import os
from typing import Any

import torch

from .._replacement import Replacement
from .._steps import sync_directory


def save_torch_file(state: dict[str, Any], path: str) -> None:
    """Saves to a file beside the target, which takes its place once the drive has it all."""
    with Replacement(path) as temporary, open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(os.path.dirname(os.path.realpath(path)))
