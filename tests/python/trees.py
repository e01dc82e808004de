"""Trees of values and tensors, compared in everything that a program can see of them."""

from __future__ import annotations

from typing import Any

import helpers
import numpy as np
import torch


def assert_same_trees(actual: Any, expected: Any) -> None:
    """Equal in types, values, order, strides, gradients, attributes, and in which tensors and objects are shared."""
    TreeComparison().compare(actual, expected, "tree")


class TreeComparison:
    """Goes through two trees at once; what was met before must be the same object again in both."""

    def __init__(self) -> None:
        self._objects: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no identity is used twice

    def compare(self, actual: Any, expected: Any, where: str) -> None:
        assert type(actual) is type(expected), where
        if isinstance(expected, (dict, list, set, torch.Tensor)) and not self.is_new(actual, expected, where):
            return
        if isinstance(expected, torch.Tensor):
            self._compare_tensors(actual, expected, where)
        elif isinstance(expected, torch.storage.TypedStorage):
            assert actual.dtype == expected.dtype, where
            assert actual.tolist() == expected.tolist(), where
            self._compare_storages(actual._untyped_storage, expected._untyped_storage, where)
        elif isinstance(expected, dict):
            assert len(actual) == len(expected), where
            for (one_key, one), (key, other) in zip(actual.items(), expected.items(), strict=True):
                self.compare(one_key, key, f"a key of {where}")
                self.compare(one, other, f"{where}[{key!r}]")
        elif isinstance(expected, (list, tuple)):
            assert len(actual) == len(expected), where
            for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
                self.compare(one, other, f"{where}[{i}]")
        elif isinstance(expected, (float, complex, np.generic)):
            assert repr(actual) == repr(expected), where
        else:
            assert actual == expected, where
        if hasattr(expected, "__dict__") and not isinstance(expected, (torch.storage.TypedStorage, torch.nn.Module)):
            self.compare(vars(actual), vars(expected), f"{where}.__dict__")

    def is_new(self, actual: Any, expected: Any, where: str) -> bool:
        """False for an object that was compared before."""
        self._kept += [actual, expected]
        is_new = id(expected) not in self._objects
        assert self._objects.setdefault(id(expected), id(actual)) == id(actual), f"{where}: not the same object"
        return is_new

    def _compare_tensors(self, actual: torch.Tensor, expected: torch.Tensor, where: str) -> None:
        for name in ("dtype", "device", "shape", "layout", "requires_grad", "is_leaf"):
            assert getattr(actual, name) == getattr(expected, name), f"{where}: {name}"
        assert actual.is_conj() == expected.is_conj(), where
        assert actual.is_neg() == expected.is_neg(), where
        if expected.layout is not torch.strided or expected.is_quantized:
            assert str(actual) == str(expected), where
            return
        assert actual.stride() == expected.stride(), where
        assert actual.storage_offset() == expected.storage_offset(), where
        if not expected.is_meta:
            assert helpers.same(actual.resolve_conj().resolve_neg(), expected.resolve_conj().resolve_neg()), where
        self._compare_storages(actual.untyped_storage(), expected.untyped_storage(), where)

    def _compare_storages(self, actual: Any, expected: Any, where: str) -> None:
        if expected.device.type == "meta":
            return
        assert actual.nbytes() == expected.nbytes(), f"{where}: size of the storage"
        if expected.nbytes() > 0:
            other = self._storages.setdefault(expected.data_ptr(), actual.data_ptr())
            assert other == actual.data_ptr(), f"{where}: not the same storage"
