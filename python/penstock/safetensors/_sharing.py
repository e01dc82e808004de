"""Which tensors of a model share memory, and which of their names is stored."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

from ..errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor


def storage_ptr(tensor: Tensor) -> int:
    """Where the memory that a tensor is a view of begins; 0 where it has none."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except NotImplementedError:  # a sparse tensor, a wrapper of others
        return 0


def storage_size(tensor: Tensor) -> int:
    """How many bytes it has."""
    return int(tensor.untyped_storage().nbytes())


def end_ptr(tensor: Tensor) -> int:
    """The address behind the last byte that a tensor touches."""
    return span(tensor)[1]


def is_complete(tensor: Tensor) -> bool:
    """Whether a tensor is all of its memory."""
    nbytes = tensor.numel() * tensor.element_size()
    return tensor.data_ptr() == storage_ptr(tensor) and nbytes == storage_size(tensor)


def find_shared_tensors(state_dict: Mapping[str, Tensor]) -> list[set[str]]:
    """The names, grouped by whether their memory overlaps; without tensors that have no memory."""
    by_storage: dict[tuple[object, int, int], list[str]] = {}
    for name, tensor in state_dict.items():
        address = storage_ptr(tensor)
        if tensor.device.type != "meta" and address and storage_size(tensor):
            by_storage.setdefault((tensor.device, address, storage_size(tensor)), []).append(name)
    return [set(group) for names in by_storage.values() for group in _overlapping(names, state_dict)]


def remove_duplicate_names(
    state_dict: Mapping[str, Tensor],
    *,
    preferred_names: list[str] | None = None,
    discard_names: list[str] | None = None,
) -> dict[str, list[str]]:
    """For every name that is stored, the names of the same memory that are not.

    Refused is a group of which no tensor is all of its memory.
    """
    removed = {}
    for group in find_shared_tensors(state_dict):
        whole = sorted(name for name in group if is_complete(state_dict[name]))
        if not whole:
            raise ModelError(f"{', '.join(sorted(group))}: a part of larger memory, and no name is all of it")
        wanted = [name for name in whole if name in (preferred_names or ())]
        left = [name for name in whole if name not in (discard_names or ())]
        kept = (wanted or left or whole)[0]
        if len(group) > 1:
            removed[kept] = sorted(group - {kept})
    return removed


def without_aliases(state: Mapping[str, Tensor], preferred: Container[str] = ()) -> tuple[list[str], dict[str, str]]:
    """The names to store, and for each other name the stored one whose memory holds it."""
    groups = find_shared_tensors(state)
    shared = {name for group in groups for name in group}
    kept = [name for name in state if name not in shared]
    aliases: dict[str, str] = {}
    for group in groups:
        keeper = _widest(sorted(group), state, preferred)
        kept.append(keeper)
        aliases.update((name, keeper) for name in sorted(group) if name != keeper)
    return kept, aliases


def span(tensor: Tensor) -> tuple[int, int]:
    """The bytes that a tensor touches, first and one past the last."""
    if tensor.numel() == 0:
        return tensor.data_ptr(), tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _overlapping(names: list[str], state: Mapping[str, Tensor]) -> list[list[str]]:
    """Names of one storage, grouped by whether their memory overlaps."""
    groups: list[list[str]] = []
    end = -1
    for name in sorted(names, key=lambda name: (span(state[name]), name)):
        begin, name_end = span(state[name])
        if groups and begin < end:
            groups[-1].append(name)
        else:
            groups.append([name])
        end = max(end, name_end)
    return groups


def _widest(names: list[str], state: Mapping[str, Tensor], preferred: Container[str]) -> str:
    """The name to store: the first, in order, of those whose memory covers all the others', a preferred one if any."""
    begin = min(span(state[name])[0] for name in names)
    end = max(span(state[name])[1] for name in names)
    whole = [
        name
        for name in names
        if span(state[name]) == (begin, end) and state[name].numel() * state[name].element_size() == end - begin
    ]
    if not whole:
        raise ModelError(f"{', '.join(names)} share memory, and none of them holds it all")
    return next((name for name in whole if name in preferred), whole[0])
