"""How much may be read ahead: from `max_batch_bytes`, `device_memory_budget` and what the files hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ..errors import ArgumentError

Sizes = Iterable[tuple[str, int]]  # names and bytes of tensors, in the order of the files
Keep = Callable[[str], bool]

_BATCH = 128 * 2**20


class BudgetInfeasibleError(ArgumentError):
    """The tensors do not fit into device_memory_budget, however little is read at a time. It is a ValueError."""


class Need(NamedTuple):
    """What a load needs: bytes of all its tensors, of those that stay, and of the largest."""

    total: int
    resident: int
    largest: int
    largest_name: str
    largest_passing: int  # of those that do not stay


def need_of(sizes: Sizes, accumulate_resident: bool, resident_tensor: Keep | None) -> Need:
    """What tensors of these sizes need. Which stay: all, none, or those that `resident_tensor` names."""
    total = resident = largest = passing = 0
    name_of_largest = ""
    for name, nbytes in sizes:
        total += nbytes
        if nbytes > largest:
            largest, name_of_largest = nbytes, name
        if accumulate_resident and (resident_tensor is None or resident_tensor(name)):
            resident += nbytes
        else:
            passing = max(passing, nbytes)
    return Need(total, resident, largest, name_of_largest, passing)


def pipeline_depth(queue_size: int) -> int:
    """Batches that are in memory at once: one of a serial load, two of a pipeline, and those that are queued."""
    return 1 if queue_size < 0 else queue_size + 2


def read_ahead_bytes(need: Need, queue_size: int, max_batch_bytes: int | None, device_memory_budget: int | None) -> int:
    """How many bytes may be read before they are asked for.

    Tensors that stay are counted once: what is read ahead is what stays later. One that passes is in the caller's hands
    while the next ones are read.
    """
    ahead = max_batch_bytes if max_batch_bytes is not None else _BATCH * pipeline_depth(queue_size)
    if device_memory_budget is None:
        return ahead
    least = need.resident + 2 * need.largest_passing
    if device_memory_budget < least:
        raise BudgetInfeasibleError(
            f"device_memory_budget={device_memory_budget} is too small: at least {least} bytes are needed, "
            f"{need.resident} of them for tensors that stay"
        )
    if need.resident == need.total:
        return ahead
    return min(ahead, device_memory_budget - need.resident - need.largest_passing)


def check_batch(need: Need, max_batch_bytes: int | None) -> None:
    """Refuses a limit that a tensor by itself does not keep."""
    if max_batch_bytes is None:
        return
    if max_batch_bytes <= 0:
        raise ArgumentError(f"max_batch_bytes must be positive, not {max_batch_bytes}")
    if need.largest > max_batch_bytes:
        raise ArgumentError(
            f"max_batch_bytes={max_batch_bytes} is less than the {need.largest} bytes of {need.largest_name!r}"
        )


def chunks(sizes: Sizes, limit: int) -> Iterator[set[str]]:
    """Tensors of a file in batches, in order, of at most `limit` bytes each; a larger tensor is one by itself."""
    names: set[str] = set()
    held = 0
    for name, nbytes in sizes:
        if names and held + nbytes > limit:
            yield names
            names, held = set(), 0
        names.add(name)
        held += nbytes
    if names:
        yield names
