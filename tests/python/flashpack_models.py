"""Models to assign files to, and what has to be left of them when that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import torch
from penstock.flashpack import assign_from_file
from torch import nn


class Model(nn.Module):
    """Parameters, buffers that are saved, and one that is not."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7)
        self.scale = nn.Parameter(torch.rand(()), requires_grad=False)
        self.register_buffer("mask", torch.rand(3) > 0.5)
        self.register_buffer("cache", torch.rand(2), persistent=False)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def snapshot(model: nn.Module) -> list[tuple[str, int, torch.Tensor]]:
    """Every tensor of a model: which object it is, and its values."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return [(name, id(tensor), tensor.detach().clone()) for name, tensor in tensors]


def assert_untouched(model: nn.Module, before: list[tuple[str, int, torch.Tensor]]) -> None:
    after = snapshot(model)
    assert [entry[:2] for entry in after] == [entry[:2] for entry in before]
    assert all(helpers.same(new, old) for (_, _, new), (_, _, old) in zip(after, before, strict=True))
    assert not hasattr(model, "_flash_shared_storage")


def refused(model: nn.Module, path: Path, **arguments: Any) -> str:
    """The one line that says why the file does not fit; the model must be as it was."""
    before = snapshot(model)
    with pytest.raises(penstock.ArgumentError) as caught:
        assign_from_file(model, path, **arguments)
    assert isinstance(caught.value, ValueError)
    assert_untouched(model, before)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path} does not fit {type(model).__name__}: ")
    return line.removeprefix(f"{path} does not fit {type(model).__name__}: ")


KEEP = pytest.mark.parametrize("keep", [False, True], ids=["", "blocks kept"])
