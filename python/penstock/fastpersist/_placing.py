"""torch's rules for map_location."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def is_meta(map_location: Any) -> bool:
    """Whether no storage is wanted at all."""
    return isinstance(map_location, (str, torch.device)) and torch.device(map_location).type == "meta"


def placing(map_location: Any, locations: set[str]) -> Callable[[torch.UntypedStorage, str], Any] | None:
    """What to do with a storage, which is on the CPU, that was at one of `locations`; None when it is right where it is."""
    restore: Any = torch.serialization.default_restore_location
    if map_location is None:
        return None if locations <= {"cpu"} else lambda storage, location: restore(storage, location)
    if isinstance(map_location, dict):
        return lambda storage, location: restore(storage, map_location.get(location, location))
    if isinstance(map_location, (str, torch.device)):
        target = str(map_location)
        return None if target == "cpu" else lambda storage, _: restore(storage, target)

    def call(storage: torch.UntypedStorage, location: str) -> Any:
        placed = map_location(storage, location)
        return restore(storage, location) if placed is None else placed

    return call
