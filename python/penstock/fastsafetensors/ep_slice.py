"""Filters for expert parallelism: a rank loads the experts that it owns, and everything that is no expert."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from re import Pattern

from ..errors import ArgumentError

# The number of a routed expert in the names of its tensors: "model.layers.3.mlp.experts.42.w1.weight".
DEFAULT_EXPERT_PATTERN: Pattern[str] = re.compile(r"\.experts\.(\d+)\.")


def owned_expert_range(num_experts: int, ep_size: int, ep_rank: int) -> tuple[int, int]:
    """The experts [first, last) of a rank: blocks in order, the first ranks with one more where it does not divide."""
    if ep_size <= 0:
        raise ArgumentError(f"ep_size must be positive, got {ep_size}")
    if not 0 <= ep_rank < ep_size:
        raise ArgumentError(f"ep_rank {ep_rank} out of range for ep_size {ep_size}")
    share, more = divmod(num_experts, ep_size)
    first = ep_rank * share + min(ep_rank, more)
    return first, first + share + (ep_rank < more)


def expert_parallel_filter(
    num_experts: int, ep_size: int, ep_rank: int, pattern: Pattern[str] = DEFAULT_EXPERT_PATTERN
) -> Callable[[str], bool]:
    """A filter for `set_tensor_filter` and `tensor_filter=` that keeps a rank's experts and all that is no expert."""
    first, last = owned_expert_range(num_experts, ep_size, ep_rank)

    def keep(name: str) -> bool:
        found = pattern.search(name)
        return found is None or first <= int(found[1]) < last

    return keep


def expert_parallel_filter_from_env() -> Callable[[str], bool] | None:
    """The filter that the environment asks for; None where it asks for none, or where one rank owns everything.

    FASTSAFETENSORS_EP_SLICE=1 asks for it, FASTSAFETENSORS_EP_NUM_EXPERTS says how many there are, and
    FASTSAFETENSORS_EP_SIZE and FASTSAFETENSORS_EP_RANK whose they are: without them torch.distributed, then WORLD_SIZE
    and RANK.
    """
    if os.environ.get("FASTSAFETENSORS_EP_SLICE") != "1":
        return None
    experts = _number("FASTSAFETENSORS_EP_NUM_EXPERTS", 0)
    size, rank = _ranks()
    size = _number("FASTSAFETENSORS_EP_SIZE", size, least=1)
    rank = _number("FASTSAFETENSORS_EP_RANK", rank, least=0)
    return expert_parallel_filter(experts, size, rank) if experts > 0 and size > 1 else None


def _ranks() -> tuple[int, int]:
    """How many processes there are, and which this is. Who has a group has imported torch.distributed."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size()), int(distributed.get_rank())
    return _number("WORLD_SIZE", 1), _number("RANK", 0)


def _number(variable: str, default: int, least: int | None = None) -> int:
    """The value of a variable; the default where it is not set, or is less than makes sense."""
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ArgumentError(f"{variable} is {text!r}, not a number") from None
    return default if least is not None and value < least else value
