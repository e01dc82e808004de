"""The arguments of save_pretrained_flashpack, sorted by whom they are for."""

from __future__ import annotations

from typing import Any, NamedTuple

# For pack_to_file, and the names to leave out.
_PACK = frozenset(
    {
        "align_bytes",
        "align_large",
        "ignore_names",
        "ignore_prefixes",
        "ignore_suffixes",
        "num_workers",
        "silent",
        "target_dtype",
    }
)

_HUB = frozenset({"commit_message", "create_pr", "private", "repo_id", "token"})

# How other savers write other files.
_WITHOUT_MEANING_HERE = frozenset(
    {"max_shard_size", "safe_serialization", "save_function", "save_peft_format", "use_flashpack"}
)


class SortedForSaving(NamedTuple):
    """The arguments, by whom they are for."""

    pack: dict[str, Any]
    hub: dict[str, Any]


def sort_for_saving(arguments: dict[str, Any]) -> SortedForSaving:
    """Sorts keyword arguments. An unknown one is a TypeError, as everywhere."""
    unknown = sorted(arguments.keys() - _PACK - _HUB - _WITHOUT_MEANING_HERE)
    if unknown:
        raise TypeError(f"save_pretrained_flashpack() got an unexpected keyword argument {unknown[0]!r}")
    return SortedForSaving(
        {name: value for name, value in arguments.items() if name in _PACK},
        {name: value for name, value in arguments.items() if name in _HUB},
    )
