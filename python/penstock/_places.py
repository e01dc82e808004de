"""Tensors that exist already, as places that a checkpoint can be loaded into."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any, NamedTuple

from .errors import ArgumentError


class Place(NamedTuple):
    """A tensor of the target. Places with equal `identity` are the same memory."""

    value: Any
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    identity: Any
    address: int | None  # None: the memory can't be read into directly
    obstacle: str | None = None  # why it can't be written to
    is_copy: bool = False  # of something in the module that only load_state_dict reaches


def is_module(target: Any) -> bool:
    """Whether it is a torch module."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(target, torch.nn.Module)


def find_places(target: Any) -> tuple[dict[str, Place], Any]:
    """The target's tensors by name, and the framework module that they belong to."""
    values = _values(target)
    own = _own_tensors(target)
    for framework in _imported_frameworks():
        places = {name: framework.place(name, value) for name, value in values.items()}
        if all(place is not None for place in places.values()):
            if own is not None:
                places = {name: place._replace(is_copy=id(place.value) not in own) for name, place in places.items()}
            return places, framework
    raise ArgumentError("the target's values must all be torch tensors, or all NumPy arrays")


def _values(target: Any) -> dict[str, Any]:
    if is_module(target):
        import torch

        state = target.state_dict(keep_vars=True)
        return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    if isinstance(target, MutableMapping):
        return dict(target)
    raise ArgumentError(f"expected a torch module or a dict of tensors, not {type(target).__name__}")


def _own_tensors(target: Any) -> set[int] | None:
    """The identities of a module's parameters and buffers: a state_dict() may give copies of them."""
    if not is_module(target):
        return None
    named = (target.named_parameters, target.named_buffers)
    return {id(value) for find in named for _, value in find(remove_duplicate=False)}


def _imported_frameworks() -> list[Any]:
    """Whoever has tensors has imported their framework."""
    frameworks: list[Any] = []
    if "torch" in sys.modules:
        from . import _torch

        frameworks.append(_torch)
    if "numpy" in sys.modules:
        from . import _numpy

        frameworks.append(_numpy)
    return frameworks
