"""Trees with objects in them that nobody made: penstock's opaque values against the reference's stand-ins."""

from __future__ import annotations

from typing import Any

import helpers
import numpy as np
import penstock
from reference import NUMBERS, StandIn
from trees import TreeComparison


def stand_in_name(stand_in: Any) -> str:
    """The class that an object is of; copyreg makes those that its first argument names."""
    name: str = stand_in.class_name
    indirect = name.startswith(("copyreg.", "copy_reg.")) and isinstance(stand_in, StandIn)
    return stand_in_name(stand_in.arguments[0]) if indirect else name


class OpaqueComparison(TreeComparison):
    def compare(self, actual: Any, expected: Any, where: str) -> None:
        if isinstance(expected, StandIn) or (isinstance(expected, type) and issubclass(expected, StandIn)):
            self._compare_opaque(actual, expected, where)
        elif isinstance(expected, np.ndarray) and expected.dtype.kind not in NUMBERS:
            assert isinstance(actual, penstock.Opaque), where
            assert actual.name == "numpy.ndarray", where
        elif isinstance(expected, np.ndarray):
            assert isinstance(actual, np.ndarray), where
            assert helpers.same(actual, expected.astype(expected.dtype.newbyteorder("="))), where
        else:
            super().compare(actual, expected, where)

    def _compare_opaque(self, actual: Any, expected: Any, where: str) -> None:
        assert isinstance(actual, penstock.Opaque), where
        assert actual.name == stand_in_name(expected), where
        if isinstance(expected, type):
            assert actual.arguments is None, where
        elif self.is_new(actual, expected, where):
            self.compare(actual.arguments, expected.arguments, f"{where}(...)")
            self.compare(actual.state, expected.state, f"{where}.__dict__")
            self.compare(actual.items, expected.values, f"{where}[:]")
            self.compare(actual.entries, expected.items, f"{where}[...]")
