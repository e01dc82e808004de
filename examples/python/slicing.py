"""Reads parts of tensors, as a tensor-parallel rank would: only the bytes of the part are read."""

import tempfile
from pathlib import Path

import penstock
import torch

path = Path(tempfile.mkdtemp()) / "model.safetensors"
penstock.save({"up.weight": torch.randn(4096, 1024), "down.weight": torch.randn(1024, 4096)}, path)

rank, world = 1, 4
with penstock.open(path) as checkpoint:
    up, down = checkpoint["up.weight"], checkpoint["down.weight"]
    rows = len(up) // world
    columns = down.shape[1] // world
    up_shard = up[rank * rows : (rank + 1) * rows]
    down_shard = down[:, rank * columns : (rank + 1) * columns]
    every_other = up[::2, -1]

print("rows:", tuple(up_shard.shape), "columns:", tuple(down_shard.shape), "a column:", tuple(every_other.shape))
