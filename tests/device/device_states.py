"""States that the tests load and save, and comparisons of every byte that the driver does not count."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import penstock
import torch
from helpers import header_bytes, random_bytes
from sim_device import Simulator

SUFFIXES = ("safetensors", "flashpack", "pt")


def make_state(seed: int = 1) -> dict[str, torch.Tensor]:
    """Several blocks of some, tiny and empty ones, types of every width."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "large": torch.randn(1200, 1100, generator=generator),
        "half": torch.randn(70_001, generator=generator).half(),
        "bfloat": torch.randn(333, 64, generator=generator).bfloat16(),
        "fp8": torch.randn(64, 65, generator=generator).to(torch.float8_e4m3fn),
        "bytes": torch.arange(251, dtype=torch.uint8),
        "flags": torch.rand(33, generator=generator) > 0.5,
        "double": torch.randn(7, 3, generator=generator, dtype=torch.float64),
        "counter": torch.tensor(12345),
        "empty": torch.empty(0, 4),
    }


def bytes_there(sim: Simulator, tensor: torch.Tensor) -> bytes:
    """What is in a contiguous tensor's memory on the device now, whatever is still queued."""
    assert tensor.is_contiguous()
    return sim.peek(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes > 0 else b""


def bytes_here(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_there(
    sim: Simulator, actual: Mapping[str, Any], expected: Mapping[str, torch.Tensor], device: str = "sim:0"
) -> None:
    """Every tensor is on the device, alone in its storage, and has these bytes: now, on any stream."""
    assert sorted(actual) == sorted(expected)
    for name, wanted in expected.items():
        tensor = actual[name]
        assert tensor.device == torch.device(device), name
        assert (tensor.dtype, tensor.shape) == (wanted.dtype, wanted.shape), name
        assert tensor.untyped_storage().nbytes() == wanted.nbytes, name
        assert tensor._base is None, name
        assert bytes_there(sim, tensor) == bytes_here(wanted), name


def zeros_like(state: Mapping[str, torch.Tensor], device: str = "sim:0") -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(tensor, device=device) for name, tensor in state.items()}


def to_device(state: Mapping[str, torch.Tensor], device: str = "sim:0") -> dict[str, torch.Tensor]:
    return {name: tensor.to(device) for name, tensor in state.items()}


def save_state(folder: Path, suffix: str, state: Mapping[str, torch.Tensor], **arguments: Any) -> Path:
    path = folder / f"model.{suffix}"
    penstock.save(dict(state), path, **arguments)
    return path


def write_narrow(path: Path) -> dict[str, bytes]:
    """A safetensors file of types that are narrower than a byte."""
    f4, f6 = random_bytes(4096, 1), random_bytes(300, 2)
    header = {
        "f4": {"dtype": "F4", "shape": [64, 128], "data_offsets": [0, 4096]},
        "f6": {"dtype": "F6_E2M3", "shape": [400], "data_offsets": [4096, 4396]},
    }
    path.write_bytes(header_bytes(header) + f4 + f6)
    return {"f4": f4, "f6": f6}
