"""What a file holds, as data: its macroblocks, the records of its index, and the loaded blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class FlashTensorStorage:
    """The loaded macroblocks of a file: one 1-dimensional tensor each, padding included. Tensors are views of these.

    `backing_arrays` is always None: blocks own their memory. It is there for code that looks at it.
    """

    blocks: list[torch.Tensor]
    backing_arrays: list[Any] | None = None

    def block(self, idx: int) -> torch.Tensor:
        """The block with this number."""
        return self.blocks[idx]

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def device(self) -> torch.device:
        """Where the blocks are; the CPU when there are none."""
        return self.blocks[0].device if self.blocks else torch.device("cpu")


@dataclass
class MacroblockSpec:
    """Where the elements of one type lie in a file."""

    dtype: torch.dtype
    offset_bytes: int
    length_bytes: int
    length_elems: int


@dataclass
class TensorIndexRecord:
    """One tensor of a file. `offset` and `length` count elements of its macroblock."""

    name: str
    shape: list[int]
    offset: int
    length: int
    macroblock: int = 0


@dataclass
class MacroblockPlan:
    """A macroblock that is to be written, with the tensors in it."""

    dtype: torch.dtype
    offset_bytes: int
    length_bytes: int
    total_elems: int
    align_elems: int
    tensors: list[TensorIndexRecord]


def index_records(metadata: dict[str, Any]) -> list[TensorIndexRecord]:
    """The index of a file's metadata."""
    return [
        TensorIndexRecord(
            record["name"], list(record["shape"]), record["offset"], record["length"], record.get("macroblock", 0)
        )
        for record in metadata["index"]
    ]
