"""The files of a training step: each entry of the state is one, and what is saved can be loaded as data."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from ._into import load_into
from ._job import SaveJob
from ._load import load
from ._opaque import OpaqueValue
from ._options import open_reader
from ._places import is_module
from ._save import save_async
from .errors import ArgumentError, Error, UnknownTensorError, UnsupportedError

_NAME = re.compile(r"(?P<stem>[A-Za-z0-9_-]+)(?P<suffix>\.(?:pt|pth|bin|ckpt|safetensors))?")
_FILE = re.compile(
    r"(?P<stem>[A-Za-z0-9_-]+)(?:\.rank-(?P<rank>\d{5})-of-(?P<world>\d{5}))?"
    r"(?P<suffix>\.(?:pt|pth|bin|ckpt|safetensors))"
)


class Entry(NamedTuple):
    """One entry of a state: its name, what is saved of it, its file, and whether every rank has one of its own."""

    name: str
    value: Any
    file: str
    is_own: bool

    def arguments(self, durable: bool) -> dict[str, Any]:
        """How its file is saved."""
        if self.file.endswith(".safetensors"):  # those of transformers want to know whose tensors they are
            return {"durable": durable, "shared": "deduplicate", "checksums": True, "metadata": {"format": "pt"}}
        return {"durable": durable, "format": "torch"}


def read_entries(state: Any, per_rank: Collection[str], rank: int, world: int) -> list[Entry]:
    """What a state consists of, in order; where ranks have different things, `per_rank` names them."""
    if not isinstance(state, Mapping):
        raise ArgumentError(f"expected a state as a dict of names to models, optimizers, trees: not {_kind(state)}")
    entries: list[Entry] = []
    for name, value in state.items():
        is_own = world > 1 and name in per_rank
        entries.append(Entry(name, _saved(name, value), file_name(name, is_own, rank, world), is_own))
    files = [entry.file for entry in entries]
    twice = next((entry.name for entry in entries if files.count(entry.file) > 1), None)
    if twice is not None:
        raise ArgumentError(f"{twice!r}: two entries of the state have the same file")
    return entries


def file_name(name: Any, is_own: bool, rank: int, world: int) -> str:
    """The file of an entry: "model.pt" for "model", "model.safetensors" for itself."""
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        raise ArgumentError(
            f"{name!r} can't be the name of an entry: it takes letters, digits, _ and -, and .safetensors or .pt"
        )
    of_rank = f".rank-{rank:05}-of-{world:05}" if is_own else ""
    return f"{found['stem']}{of_rank}{found['suffix'] or '.pt'}"


class SavedStep(Mapping[str, Any]):
    """A committed step of a training run: its number, its directory, and what was saved in it.

    A mapping: ``saved["progress"]`` loads that entry, as data; nothing is executed.
    """

    step: int
    path: Path

    def __init__(self, step: int, path: Path, rank: int = 0, world: int = 1) -> None:
        self.step = step
        self.path = path
        self._world = world
        self._files = _find_files(path, rank, world)

    def __getitem__(self, name: str) -> Any:
        return load(self.file(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __repr__(self) -> str:
        return f"<penstock.SavedStep {self.step} in {self.path}: {', '.join(self)}>"

    def file(self, name: str) -> Path:
        """The file of an entry."""
        path = self._files.get(name.removesuffix(".pt"))
        if path is None:
            raise UnknownTensorError(f"{self.path}: has no {name!r}, only {', '.join(self) or 'nothing'}")
        parts = _FILE.fullmatch(path.name)
        if parts is not None and parts["world"] is not None and int(parts["world"]) != self._world:
            raise ArgumentError(
                f"{path}: {name} was saved by each of {int(parts['world'])} ranks for itself, and now there "
                f"{'is' if self._world == 1 else 'are'} {self._world}"
            )
        return path

    def restore(self, targets: Mapping[str, Any], verify: bool | str = False) -> None:
        """Fills models, optimizers and whatever else has load_state_dict; a dict gets what was saved as its content.

        All that can be loaded beside its target is loaded before any of them changes.
        """
        for name, target in targets.items():
            if self.file(name) and not (_takes_state(target) or isinstance(target, MutableMapping)):
                raise ArgumentError(f"{name}: can't be restored into {_kind(target)}, which has no load_state_dict")
        modules = {name: target for name, target in targets.items() if _takes_bytes(target)}
        beside = {name: load(self.file(name), verify=verify) for name in targets if name not in modules}
        for name, module in modules.items():
            load_into(module, self.file(name), verify=verify)
        for name, loaded in beside.items():
            _hand_over(name, targets[name], loaded)


def _find_files(folder: Path, rank: int, world: int) -> dict[str, Path]:
    """The files by the names of their entries: those that all ranks share, and this rank's own.

    One that was saved by each of another number of ranks is among them, to be refused when it is asked for.
    """
    found: dict[str, Path] = {}
    for name in sorted(os.listdir(folder)):
        parts = _FILE.fullmatch(name)
        if parts is None or (parts["rank"] and int(parts["world"]) == world and int(parts["rank"]) != rank):
            continue
        found.setdefault(parts["stem"] + parts["suffix"].removesuffix(".pt"), folder / name)
    return found


def start_saves(entries: list[Entry], folder: str, durable: bool, snapshot: bool | str, jobs: list[SaveJob]) -> None:
    """Saves entries in the background. Returns when they may change; what has begun is in `jobs`, also on an error."""
    for entry in entries:
        job = save_async(entry.value, os.path.join(folder, entry.file), snapshot=snapshot, **entry.arguments(durable))
        job._save.asked = True  # its failure is the step's, and told there
        jobs.append(job)
    for job in jobs:
        job.staged()


def check_loadable(path: str, name: str) -> None:
    """Refuses what could only be loaded by executing code."""
    opaque = open_reader(path).opaque()
    if opaque:
        raise UnsupportedError(
            f"{name}: {OpaqueValue(*opaque[0])} is an object that can't be loaded as data: save what it holds as a dict"
        )


def _saved(name: str, value: Any) -> Any:
    """What is saved of an entry."""
    state = value.state_dict() if callable(getattr(value, "state_dict", None)) else value
    tensors = sys.modules.get("torch.distributed.tensor")
    if tensors is not None and any(isinstance(leaf, tensors.DTensor) for leaf in _leaves(state)):
        raise UnsupportedError(
            f"{name}: holds DTensors, of which each rank has a part: save them with penstock.dcp, or gather them "
            "(torch.distributed.checkpoint.state_dict with full_state_dict=True)"
        )
    return state


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        yield tree
        return
    for each in tree:
        yield from _leaves(each)


def _takes_state(target: Any) -> bool:
    return callable(getattr(target, "load_state_dict", None))


def _takes_bytes(target: Any) -> bool:
    """Whether it is a module that holds tensors alone, so that bytes are read straight into it."""
    if not is_module(target):
        return False
    return not any(name.endswith("_extra_state") for name in target.state_dict())


def _hand_over(name: str, target: Any, loaded: Any) -> None:
    if _takes_state(target):
        try:
            target.load_state_dict(loaded)
        except (RuntimeError, ValueError, KeyError, TypeError) as problem:
            if isinstance(problem, Error):
                raise
            reason = " ".join(str(problem).split())
            raise ArgumentError(f"{name}: the {_kind(target)} can't take what was saved: {reason}") from problem
        return
    if not isinstance(loaded, Mapping):
        raise ArgumentError(f"{name}: a {_kind(loaded)} was saved, which can't be restored into a dict")
    target.clear()
    target.update(loaded)


def _kind(value: Any) -> str:
    return type(value).__name__
