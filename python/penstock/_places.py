"""Tensors that exist already, as places that a checkpoint can be loaded into."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any

from ._frameworks import Framework, Place, imported_frameworks
from .errors import ArgumentError


def is_module(target: Any) -> bool:
    """Whether it is a torch module."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(target, torch.nn.Module)


def names_on_meta(target: Any) -> list[str]:
    """What of the target has no memory: of a module also what is not in its state."""
    if is_module(target):
        values = dict(target.named_parameters(remove_duplicate=False))
        values.update(target.named_buffers(remove_duplicate=False))
    else:
        values = target
    return [name for name, value in values.items() if getattr(value, "is_meta", False)]


def find_places(target: Any) -> tuple[dict[str, Place], Framework]:
    """The target's tensors by name, and the framework module that they belong to."""
    values = _values(target)
    own = _own_tensors(target)
    for framework in imported_frameworks():
        found = ((name, framework.place(name, value)) for name, value in values.items())
        places = {name: place for name, place in found if place is not None}
        if len(places) == len(values):
            if own is not None:
                places = {name: place._replace(is_copy=id(place.value) not in own) for name, place in places.items()}
            return places, framework
    raise ArgumentError("the target's values must all be torch tensors, or all NumPy arrays")


def _values(target: Any) -> dict[str, Any]:
    if is_module(target):
        from ._torch import state_tensors

        return state_tensors(target)
    if isinstance(target, MutableMapping):
        return dict(target)
    raise ArgumentError(f"expected a torch module or a dict of tensors, not {type(target).__name__}")


def _own_tensors(target: Any) -> set[int] | None:
    """The identities of a module's parameters and buffers: a state_dict() may give copies of them."""
    if not is_module(target):
        return None
    named = (target.named_parameters, target.named_buffers)
    return {id(value) for find in named for _, value in find(remove_duplicate=False)}
