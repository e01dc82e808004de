"""The names that signatures use for what many types can be."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeAlias

    from typing_extensions import Unpack
elif sys.version_info >= (3, 11):
    from typing import TypeAlias, Unpack
else:
    from typing import TypeAlias

    class Unpack:
        """Stands in for typing's own, which is read by type checkers only."""

        def __class_getitem__(cls, item: Any) -> Any:
            return item


__all__ = ["DType", "Device", "Module", "RngState", "State", "StatsDict", "Tensor", "Unpack"]

# torch.Tensor, an array of NumPy, or a PackedTensor; in a save also a LazyTensor and whatever has DLPack.
Tensor: TypeAlias = Any

# A torch.nn.Module.
Module: TypeAlias = Any

# What is saved: tensors by name, or a module; for a torch file, any object that torch.save takes.
State: TypeAlias = Any

# "cpu", "cuda:1", 1 (the same), a torch.device or None, which is the CPU.
Device: TypeAlias = Any

# torch.bfloat16, a dtype or type of NumPy, or a name: "bfloat16", "BF16", "bf16".
DType: TypeAlias = Any

# A dict, such as `Stats()`, to be filled with what was done.
StatsDict: TypeAlias = dict[str, Any]

# What `rng_state` gives: the states of random number generators by the names of their libraries.
RngState: TypeAlias = dict[str, Any]
