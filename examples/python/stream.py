"""Streams a checkpoint through memory that is smaller than it is: here, to find each tensor's largest value."""

import tempfile
from pathlib import Path

import penstock
import torch

path = Path(tempfile.mkdtemp()) / "model.safetensors"
penstock.save({f"layers.{i}.weight": torch.randn(1024, 1024) * (i + 1) for i in range(16)}, path)

for name, tensor in penstock.stream(path, max_buffer="8MiB"):
    print(f"{name:20} {tuple(tensor.shape)} {tensor.abs().max():8.3f}")
