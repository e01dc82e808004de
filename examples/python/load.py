"""Loads a checkpoint: all of it, a part of it, in another type, and into a model.

    python load.py [FILE or DIRECTORY]

Without an argument it makes a small checkpoint first.
"""

import sys
import tempfile
from pathlib import Path

import penstock
import torch


def make_checkpoint() -> Path:
    path = Path(tempfile.mkdtemp()) / "model.safetensors"
    penstock.save(torch.nn.Transformer(64, 4, 2, 2, 128), path)
    return path


path = Path(sys.argv[1]) if len(sys.argv) > 1 else make_checkpoint()
print(penstock.inspect(path))

stats = penstock.Stats()
tensors = penstock.load(path, progress=True, stats=stats)
print(f"{len(tensors)} tensors in {stats.seconds:.4f} s, {stats.path}: {stats.reason}")

biases = penstock.load(path, select="*bias", dtype=torch.bfloat16)
print(f"{len(biases)} biases as bfloat16")

if len(sys.argv) == 1:
    with torch.device("meta"):
        model = torch.nn.Transformer(64, 4, 2, 2, 128)
    penstock.load_into(model, path)
    print("a model that had no memory now has", sum(p.nbytes for p in model.parameters()), "bytes of parameters")
