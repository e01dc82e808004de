"""Objects that torch.save takes, and saving them both ways."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import pytest
import torch
from penstock.fastpersist import serialization

FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


class Point:
    """Something that is not data."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and other.x == self.x

    def __hash__(self) -> int:
        return self.x


def shared_tensors() -> dict[str, Any]:
    base = torch.arange(24.0)
    return {"base": base, "rows": base.view(4, 6)[1:3], "turned": base.view(4, 6).t(), "same": base, "last": base[20:]}


def tied_module() -> torch.nn.Module:
    module = torch.nn.Sequential(collections.OrderedDict(a=torch.nn.Linear(3, 3), b=torch.nn.Linear(3, 3)))
    module.b.weight = module.a.weight
    return module


def adam_state() -> dict[str, Any]:
    torch.manual_seed(0)
    module = tied_module()
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return {"model": module.state_dict(), "optim": optimizer.state_dict(), "step": 17, "rng": torch.get_rng_state()}


def labelled_parameter() -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(2, 2), requires_grad=False)
    parameter.label = {"group": 1}  # type: ignore[attr-defined]
    return parameter


TREES: dict[str, Any] = {
    "a tensor": lambda: torch.arange(6).reshape(2, 3),
    "a number": lambda: 7,
    "an optimizer": adam_state,
    "views of one storage": shared_tensors,
    "tied weights": lambda: tied_module().state_dict(),
    "parameters": lambda: dict(tied_module().named_parameters()),
    "a parameter with an attribute": labelled_parameter,
    "one that requires a gradient": lambda: torch.ones(3, requires_grad=True),
    "element types": lambda: {
        name: torch.zeros(3, dtype=getattr(torch, name))
        for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float64", "complex64")
    },
    "scalars and empty ones": lambda: [torch.tensor(3), torch.empty(0, 4), torch.empty(2, 0), torch.ones(1, 1, 1)],
    "an expanded tensor": lambda: torch.ones(1, 3).expand(4, 3),
    "conjugated": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "negated": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "a sparse tensor": lambda: torch.eye(3).to_sparse(),
    "a quantised tensor": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8),
    "values": lambda: {
        "none": None,
        "flags": (True, False),
        "integers": [0, -1, 2**31, -(2**63), 2**100],
        "floats": [0.5, float("inf"), -0.0, 1e-300],
        "complex": 1 - 2j,
        "text": "naïve",
        "bytes": b"\x00\xff",
        "nested": {"deep": [{"deeper": ((), [], {})}]},
        3: "an integer key",
        ("a", 1): "a tuple key",
        "set": {1, 2},
        "size": torch.Size([1, 2]),
        "dtype": torch.float32,
        "device": torch.device("cuda", 1),
        "ordered": collections.OrderedDict(b=1, a=2),
        "counter": collections.Counter("aab"),
        "array": bytearray(b"abc"),
    },
}


def save_both(obj: Any, directory: Path, **arguments: Any) -> tuple[bytes, bytes]:
    """The bytes of both files, under one name: a zip's folder is called like it."""
    paths = [directory / "ours" / "model.pt", directory / "theirs" / "model.pt"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
    serialization.save(obj, paths[0], **arguments, classic=True, durable=False)
    torch.save(obj, paths[1], **arguments)
    return paths[0].read_bytes(), paths[1].read_bytes()
