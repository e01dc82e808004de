"""Statistics of loads that were made in several parts."""

from __future__ import annotations

from typing import Any

_ADDED = (
    "bytes",
    "seconds",
    "tensors",
    "tensors_moved",
    "bytes_direct",
    "bytes_buffered",
    "bytes_mapped",
    "bytes_copied",
    "bytes_gds",
    "bytes_on_drive",
    "requests",
    "resumed",
)


def add_counters(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Adds numbers and names all devices; other words are those of the part with the most bytes that has them."""
    if not old:
        return new
    smaller, larger = sorted((new, old), key=lambda part: int(part["bytes"]))
    devices = dict.fromkeys(name for part in (old, new) for name in part["device"].split(", ") if name)
    return {
        **larger,
        **{name: old[name] + new[name] for name in _ADDED},
        **{name: larger[name] or smaller[name] for name in ("pinning", "gds")},
        "device": ", ".join(devices),
    }
