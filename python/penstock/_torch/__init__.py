"""All that penstock knows of torch.

What stands here is what `penstock._frameworks` asks of a framework, and the types.
"""

from .devices import device, landing, streams
from .tensors import (
    DTYPES,
    NAMES,
    build,
    copy_into,
    from_any,
    mark_changed,
    pick,
    place,
    replacement,
    require,
    source,
    state_tensors,
    view,
)

__all__ = [
    "DTYPES",
    "NAMES",
    "build",
    "copy_into",
    "device",
    "from_any",
    "landing",
    "mark_changed",
    "pick",
    "place",
    "replacement",
    "require",
    "source",
    "state_tensors",
    "streams",
    "view",
]
