"""Python's garbage collector, out of the way while many objects are made."""

from __future__ import annotations

import gc


class GarbageCollectionPaused:
    """For as long as thousands of objects are made that all stay: full collections took longer than making them.

    The switch is the process's: a thread that turns the collector off meanwhile finds it on again.
    """

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_enabled:
            gc.enable()
