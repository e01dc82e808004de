"""What the tests of penstock.accelerate() share.

The originals are kept in tuples: names of a module would be replaced, as those of any module that imported them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import penstock
import pytest
import safetensors
import safetensors.torch
import torch


class Originals(NamedTuple):
    safe_open: Any
    load_file: Any
    save_file: Any
    load: Any
    save: Any


STOCK = Originals(
    safetensors.safe_open, safetensors.torch.load_file, safetensors.torch.save_file, torch.load, torch.save
)


class Counts:
    """How often an entry point was served, and fell through, since this was made."""

    def __init__(self) -> None:
        self._before = penstock.accelerated()

    def served(self, entry: str) -> int:
        return penstock.accelerated().served.get(entry, 0) - self._before.served.get(entry, 0)

    def fell(self, entry: str) -> dict[str, int]:
        before = self._before.fell_through.get(entry, {})
        now = penstock.accelerated().fell_through.get(entry, {})
        return {why: count - before.get(why, 0) for why, count in now.items() if count > before.get(why, 0)}


@contextmanager
def nothing_is_left() -> Iterator[None]:
    """Whatever a test does, it starts and ends with the originals in place."""
    yield
    penstock.decelerate()
    assert originals_in_place()


def originals_in_place() -> bool:
    current = (
        safetensors.safe_open,
        safetensors.torch.load_file,
        safetensors.torch.save_file,
        torch.load,
        torch.save,
    )
    return all(now is stock for now, stock in zip(current, STOCK, strict=True))


@pytest.fixture(autouse=True)
def decelerated() -> Iterator[None]:
    with nothing_is_left():
        yield
