"""The ways that ranks load a checkpoint by: safetensors, fastsafetensors and penstock.

The driver imports this with the standard library alone: what a way needs it imports in its `start`, which prepares and
returns the function to be timed. A rank keeps its part of what the plan splits, and the whole of the rest.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

PEER, OURS = "fastsafetensors", "penstock.fastsafetensors"


@dataclass(frozen=True)
class RankTask:
    """What one rank of a group is to do; travels as JSON."""

    way: str
    files: list[str]
    rank: int = 0
    ranks: int = 1
    rendezvous: str = ""  # a file by which the ranks find each other
    plan: dict[str, int] = field(default_factory=dict)  # see paper_models.Plan
    experts: tuple[int, int, int] | None = None  # how many there are, of how many ranks, which: only its own are wanted
    max_batch_bytes: int | None = None  # of ParallelLoader
    verify: bool = False

    def dimension(self, name: str) -> int | None:
        """Which dimension of a tensor is split; None for one that each rank has whole."""
        return next((dimension for glob, dimension in self.plan.items() if fnmatchcase(name, glob)), None)

    def filter(self) -> Callable[[str], bool] | None:
        """Which tensors are wanted, by name; None for all."""
        return expert_filter(*self.experts) if self.experts else None

    def part(self, extent: int) -> tuple[int, int]:
        """Which part of an extent is this rank's: all parts but the last are of one size."""
        size = -(-extent // self.ranks)
        return min(self.rank * size, extent), min((self.rank + 1) * size, extent)


Stats = dict[str, Any]
Load = Callable[[], dict[str, Any]]
Start = Callable[[RankTask, Stats], Load]


def expert_filter(count: int, ranks: int, rank: int) -> Callable[[str], bool]:
    """Whether a tensor is one of the rank's experts, or of no expert at all."""
    search, first, end = re.compile(r"\.experts\.(\d+)\.").search, rank * count // ranks, (rank + 1) * count // ranks

    def is_wanted(name: str) -> bool:
        found = search(name)
        return found is None or first <= int(found[1]) < end

    return is_wanted


def imported(module: str) -> Any:
    """The library with all that its loaders would import while they are timed."""
    library = importlib.import_module(module)
    importlib.import_module(f"{module}.frameworks").get_framework_op("pytorch")  # imports torch
    return library


def group_of(task: RankTask, library: Any) -> Any:
    """The ranks as both libraries take them."""
    if task.ranks == 1:
        return library.SingleGroup()
    import torch.distributed

    return torch.distributed.group.WORLD


def start_safetensors(task: RankTask, _: Stats) -> Load:
    from safetensors import safe_open
    from safetensors.torch import load_file

    def load_slices() -> dict[str, Any]:
        tensors = {}
        for file in task.files:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118  it is no dict
                    tensors[name] = load_slice(opened, name, task)
        return tensors

    def load_files() -> dict[str, Any]:
        return {name: tensor for file in task.files for name, tensor in load_file(file).items()}

    return load_files if task.ranks == 1 else load_slices


def load_slice(opened: Any, name: str, task: RankTask) -> Any:
    dimension = task.dimension(name)
    if dimension is None:
        return opened.get_tensor(name)
    whole = opened.get_slice(name)
    begin, end = task.part(whole.get_shape()[dimension])
    return whole[(slice(None),) * dimension + (slice(begin, end),)]


def start_files(module: str) -> Start:
    """SafeTensorsFileLoader: files are dealt to ranks, tensors are scattered and broadcast."""

    def start(task: RankTask, _: Stats) -> Load:
        library = imported(module)
        group, make_loader = group_of(task, library), library.SafeTensorsFileLoader
        wanted = task.filter()
        dealt = {rank: files for rank in range(task.ranks) if (files := task.files[rank :: task.ranks])}

        def load() -> dict[str, Any]:
            loader = make_loader(group, device="cpu", nogds=True)
            if wanted:
                loader.set_tensor_filter(wanted)
            loader.add_filenames(dealt)
            buffers = loader.copy_files_to_device()
            names = [*filter(wanted, loader.get_keys())] if wanted else loader.get_keys()
            tensors = {name: get(buffers, name, task) for name in names}
            buffers.close()
            loader.close()
            return tensors

        return load

    return start


def get(buffers: Any, name: str, task: RankTask) -> Any:
    dimension = task.dimension(name)
    return buffers.get_tensor(name) if dimension is None else buffers.get_sharded(name, dim=dimension)


def start_parallel(module: str) -> Start:
    """ParallelLoader: every rank is given every tensor, and several ranks copy what they keep, as vLLM's do."""

    def start(task: RankTask, _: Stats) -> Load:
        library = imported(module)
        group, make_loader = group_of(task, library), library.ParallelLoader
        options: dict[str, Any] = {"device": "cpu", "nogds": True, "use_tqdm_on_load": False}
        options |= {"tensor_filter": task.filter()} if task.experts else {}
        options |= {"max_batch_bytes": task.max_batch_bytes} if task.max_batch_bytes else {}

        def load() -> dict[str, Any]:
            loader = make_loader(group, task.files, **options)
            tensors = {name: keep(name, tensor, task) for name, tensor in loader.iterate_weights()}
            loader.close()
            return tensors

        return load

    return start


def keep(name: str, tensor: Any, task: RankTask) -> Any:
    if task.ranks == 1:
        return tensor
    dimension = task.dimension(name)
    if dimension is None:
        return tensor.clone()
    begin, end = task.part(tensor.shape[dimension])
    return tensor.narrow(dimension, begin, end - begin).clone()


def start_penstock(task: RankTask, stats: Stats) -> Load:
    """penstock.load: the engine with nothing around it; of several ranks each reads its own slices."""
    import penstock
    import penstock._torch  # with torch; what a first call imports is not what is measured

    options: dict[str, Any] = {"stats": stats}
    if task.experts:
        options["select"] = task.filter()
    if task.plan and task.ranks > 1:
        options["shard"] = task.plan
    return lambda: penstock.load(task.files, **options)


@dataclass(frozen=True)
class Way:
    """One competitor. `needs` is a statement that fails in a Python where it can't run."""

    key: str
    name: str
    role: str  # "ours" or "peer"
    start: Start
    needs: str
    needs_of_ranks: str = ""  # where several ranks need more


SHARDED = "import inspect, penstock\nassert 'shard' in inspect.signature(penstock.load).parameters, 'no shard='"
WAYS = (
    Way("safetensors", "safetensors", "peer", start_safetensors, "import safetensors.torch"),
    Way(
        "peer-files",
        "fastsafetensors SafeTensorsFileLoader",
        "peer",
        start_files(PEER),
        f"from {PEER} import SafeTensorsFileLoader",
    ),
    Way(
        "peer-parallel",
        "fastsafetensors ParallelLoader",
        "peer",
        start_parallel(PEER),
        f"from {PEER} import ParallelLoader",
    ),
    Way("load", "penstock.load", "ours", start_penstock, "import penstock", SHARDED),
    Way(
        "files",
        "penstock SafeTensorsFileLoader",
        "ours",
        start_files(OURS),
        f"from {OURS} import SafeTensorsFileLoader",
    ),
    Way(
        "parallel",
        "penstock ParallelLoader",
        "ours",
        start_parallel(OURS),
        f"from {OURS} import ParallelLoader",
    ),
)
BY_KEY = {way.key: way for way in WAYS}
