"""Tensor-parallel plans of transformers: which part of a parameter a style gives to a rank."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ._nearest import suggest
from ._parts import Range, chunk, strided_chunk
from .errors import ArgumentError, UnknownTensorError

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_PACKED_BLOCKS = 2  # gate and up in one weight

# What checkpoints call the projections of one expert, and what transformers calls those of all experts in one tensor.
_FUSED = {
    **dict.fromkeys(("gate_proj", "up_proj", "w1", "w3", "gate_up_proj"), "gate_up_proj"),
    **dict.fromkeys(("down_proj", "w2"), "down_proj"),
}
# What checkpoints call a module that plans, which know transformers' own names, call "mlp".
_OLD_NAMES = (".block_sparse_moe.",)
_EXPERT = re.compile(r"(?P<experts>.*\bexperts)\.(?P<index>\d+)\.(?P<projection>\w+)\.\w+")


class Split(NamedTuple):
    """The dimension that is split, and into how many blocks it is fused; each of them is split."""

    dim: int
    blocks: int = 1

    def ranges(self, size: int, rank: int, world: int) -> list[Range]:
        """What a rank gets of a dimension of this size."""
        whole = [(0, size, 1)]
        if self.blocks == 1:
            return chunk(whole, world, rank)
        return strided_chunk(whole, world, rank, self.blocks)


def _colwise(parameter: str, ndim: int) -> Split | None:
    return Split(max(ndim - 2, 0))


def _rowwise(parameter: str, ndim: int) -> Split | None:
    return None if parameter == "bias" else Split(ndim - 1)


def _packed_colwise(parameter: str, ndim: int) -> Split | None:
    return Split(ndim - 2, _PACKED_BLOCKS) if ndim > 1 else Split(0)


def _packed_rowwise(parameter: str, ndim: int) -> Split | None:
    return Split(ndim - 1, _PACKED_BLOCKS) if ndim > 1 else None


def _first(parameter: str, ndim: int) -> Split | None:
    return Split(0)


def _second(parameter: str, ndim: int) -> Split | None:
    return Split(1)


def _whole(parameter: str, ndim: int) -> Split | None:
    return None


# Every style that transformers 5 registers, and those of 4 that it has no more.
STYLES: dict[str, Callable[[str, int], Split | None]] = {
    **dict.fromkeys(("colwise", "colwise_gather_output", "colwise_rep", "local_colwise"), _colwise),
    **dict.fromkeys(("rowwise", "rowwise_split_input", "rowwise_rep", "local_rowwise"), _rowwise),
    "packed_colwise": _packed_colwise,
    **dict.fromkeys(("packed_rowwise", "local_packed_rowwise"), _packed_rowwise),
    "embedding_rowwise": _first,
    "embedding_colwise": _second,
    "grouped_gemm": _first,
    **dict.fromkeys(
        (
            "all_reduce",
            "ep_dispatch_experts",
            "ep_router",
            "gather",
            "local",
            "megamoe_experts",
            "megamoe_router",
            "mla_kv_a_proj",
            "moe_identity_expert",
            "moe_tp_experts",
            "replicate",
            "replicated_with_grad_allreduce",
            "sequence_parallel",
        ),
        _whole,
    ),
}


class StylePlan:
    """A plan {module or parameter: style}, "*" for the numbers of layers, for a checkpoint of these names.

    A plan of a base model lacks the name that the base model has in the checkpoint's model ("model."): the prefix that
    most of the plan's names have here is taken for it.
    """

    def __init__(self, plan: Mapping[str, str], names: Sequence[str]) -> None:
        for pattern, style in plan.items():
            if style not in STYLES:
                known = ", ".join(sorted(STYLES))
                raise ArgumentError(f"shard: {pattern!r} has the unknown style {style!r}; the known ones are {known}")
        self._plan = plan
        self._keys_of = {generic: _keys(generic) for generic in {_NUMBER.sub("*", name) for name in names}}
        used = self._used_by_prefix()
        if not used:
            pattern = next(iter(plan), "")
            raise UnknownTensorError(f"shard: no tensor matches any name of the plan{suggest(pattern, names)}")
        self._prefix = min(used, key=lambda prefix: (-len(used[prefix]), len(prefix)))
        self.unused = tuple(pattern for pattern in plan if pattern not in used[self._prefix])

    def ranges(self, name: str, shape: Sequence[int], rank: Callable[[], tuple[int, int]]) -> list[list[Range]] | None:
        """The ranges of each dimension that a rank gets; None for the whole tensor."""
        pattern = self._pattern_of(name)
        if pattern is None or not shape:
            return None
        expert = _EXPERT.fullmatch(name)
        if expert and self._plan[pattern] == "grouped_gemm":
            return self._own_expert(expert, shape, rank)
        split = STYLES[self._plan[pattern]](name.rpartition(".")[2], len(shape))
        if split is None:
            return None
        if expert and expert["projection"] != "gate_up_proj":  # one of what the style expects fused
            split = Split(split.dim)
        if split.dim >= len(shape):
            raise ArgumentError(
                f"{name}: its shape {tuple(shape)} has no dimension {split.dim} for the style {self._plan[pattern]!r}"
            )
        dims: list[list[Range]] = [[(0, size, 1)] for size in shape]
        dims[split.dim] = split.ranges(shape[split.dim], *rank())
        return dims

    def count_experts(self, names: Iterable[str]) -> None:
        """How many experts each layer has: where they lie one by one, a rank's are known by their numbers."""
        self._experts: dict[str, int] = {}
        for name in names:
            if expert := _EXPERT.fullmatch(name):
                key = expert["experts"]
                self._experts[key] = max(self._experts.get(key, 0), int(expert["index"]) + 1)

    def _own_expert(
        self, expert: re.Match[str], shape: Sequence[int], rank: Callable[[], tuple[int, int]]
    ) -> list[list[Range]] | None:
        """All of an expert that is this rank's, and nothing of another."""
        own = chunk([(0, self._experts[expert["experts"]], 1)], rank()[1], rank()[0])
        if any(int(expert["index"]) in range(*each) for each in own):
            return None
        return [[], *([(0, size, 1)] for size in shape[1:])]

    def _pattern_of(self, name: str) -> str | None:
        for key in self._keys_of[_NUMBER.sub("*", name)]:
            if key.startswith(self._prefix) and key[len(self._prefix) :] in self._plan:
                return key[len(self._prefix) :]
        return None

    def _used_by_prefix(self) -> dict[str, set[str]]:
        used: dict[str, set[str]] = {}
        for keys in self._keys_of.values():
            for key in keys:
                for pattern in self._plan:
                    if key == pattern or key.endswith("." + pattern):
                        used.setdefault(key[: len(key) - len(pattern)], set()).add(pattern)
        return used


def _keys(generic: str) -> list[str]:
    """What a plan may call a parameter: itself, its module, or the parameter that holds all experts of it."""
    for old in _OLD_NAMES:
        if old in generic:
            return [*_keys_of(generic), *_keys_of(generic.replace(old, ".mlp."))]
    return _keys_of(generic)


def _keys_of(generic: str) -> list[str]:
    module = generic.rpartition(".")[0]
    keys = [generic, module] if module else [generic]
    experts, _, projection = module.rpartition(".*.")
    if experts.endswith("experts") and projection in _FUSED:
        keys.append(f"{experts}.{_FUSED[projection]}")
    return keys
