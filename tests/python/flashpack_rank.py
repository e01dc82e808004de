"""One rank of the tests of distributed reading: runs scenarios in turn, writes a line of JSON of each."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from penstock.flashpack import _distributed, assign_from_file, iterate_from_flash_tensor
from penstock.flashpack.deserialization import read_flashpack_file_distributed
from penstock.flashpack.utils import maybe_init_distributed

LARGE = 700_001  # elements of the large block: 1.3 MiB of an odd length

MODES: dict[str, dict[str, Any]] = {
    "single reader": {},
    "last reads": {"src": -1},  # which becomes the last rank
    "contiguous": {"sharded": True, "shard_strategy": "contiguous"},
    "windows": {"sharded": True, "shard_strategy": "windows"},
}


def make_tensors() -> dict[str, dict[str, torch.Tensor]]:
    """The contents of each file, the same in every process."""
    generator = torch.Generator().manual_seed(11)

    def of(dtype: torch.dtype, count: int) -> torch.Tensor:
        return torch.randint(0, 256, (count * dtype.itemsize,), generator=generator, dtype=torch.uint8).view(dtype)

    wide = (torch.float64, torch.int32, torch.bfloat16, torch.complex64, torch.uint16, torch.float8_e8m0fnu)
    return {
        "large": {"weight": of(torch.bfloat16, LARGE), "bias": of(torch.bfloat16, 33)},
        "mixed": {
            **{f"of {dtype}": of(dtype, 3001 + 977 * number) for number, dtype in enumerate(wide)},
            "flags": of(torch.uint8, 4099) % 2 == 0,
            "scalar": torch.tensor(7),
            "nothing": torch.empty(0, 3, dtype=torch.float16),
        },
        "tiny": {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([True])},
    }


class Rank:
    """What the scenarios of this process have in common."""

    def __init__(self, rank: int, world: int, directory: Path) -> None:
        self.rank, self.world, self.directory = rank, world, directory
        self.expected = make_tensors()
        self._results = (directory / f"results-{rank}").open("a")

    def record(self, scenario: str, act: Callable[[], Any]) -> None:
        held = None
        try:
            outcome = act()
        except Exception as error:
            outcome = {"error": type(error).__name__, "message": str(error)}
            held = error
        outcome = outcome if isinstance(outcome, dict) else {"value": outcome}
        if held is not None:
            outcome["kept"] = large_tensors()  # while the error, and its traceback, are alive
        self._results.write(json.dumps({"scenario": scenario, **outcome}) + "\n")
        self._results.flush()

    def read(self, name: str, mode: str, path: Path | None = None) -> bool:
        """Whether every tensor came out as it was made."""
        arguments = {**MODES[mode]}
        if "src" in arguments:
            arguments["src"] = self.world - 1
        file = path or self.directory / f"{name}.flashpack"
        storage, metadata = read_flashpack_file_distributed(file, "cpu", **arguments)
        found = dict(iterate_from_flash_tensor(storage, metadata))
        return found.keys() == self.expected[name].keys() and all(
            same(tensor, found[key]) for key, tensor in self.expected[name].items()
        )

    def path_that_only(self, rank: int, special: str) -> Path:
        return self.directory / (f"{special}.flashpack" if self.rank == rank else "large.flashpack")


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and a.reshape(-1).view(torch.uint8).equal(b.reshape(-1).view(torch.uint8))
    )


def large_tensors() -> int:
    """Tensors of the large block's size that are alive, beside the one the test compares with."""
    gc.collect()
    alive = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor]
    return len({one.data_ptr() for one in alive if one.numel() * one.element_size() >= 2 * LARGE}) - 1


@contextmanager
def at_read(number: int, action: Callable[[], None]) -> Iterator[None]:
    """Does something when this process is about to read for that time."""
    original, count = _distributed._Source.read, 0

    def read(self: Any, block: int, share: Any) -> torch.Tensor:
        nonlocal count
        count += 1
        if count == number:
            action()
        return original(self, block, share)

    _distributed._Source.read = read  # type: ignore[method-assign]
    try:
        yield
    finally:
        _distributed._Source.read = original  # type: ignore[method-assign]


def fail() -> None:
    raise ValueError("a cosmic ray")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stall() -> None:
    time.sleep(3600)


def read_it_well(here: Rank) -> None:
    for mode in MODES:
        for name in here.expected:
            here.record(f"{mode}: {name}", lambda name=name, mode=mode: here.read(name, mode))  # type: ignore[misc]


def assign_it(here: Rank) -> None:
    def assign() -> bool:
        model = torch.nn.Module()
        for name, tensor in here.expected["large"].items():
            model.register_parameter(name, torch.nn.Parameter(torch.zeros_like(tensor)))
        file = here.directory / "large.flashpack"
        assign_from_file(model, file, use_distributed_loading=True, distributed_sharded=True)
        return all(same(tensor, getattr(model, name).detach()) for name, tensor in here.expected["large"].items())

    here.record("assign", assign)


def read_badly(here: Rank) -> None:
    """Failures that every process survives; after them the ranks still work together."""
    last = here.world - 1
    for mode in ("contiguous", "windows"):
        for special in ("missing", "truncated", "other"):
            path = here.path_that_only(last, special)
            here.record(f"{special}, {mode}", lambda path=path, mode=mode: here.read("large", mode, path))  # type: ignore[misc]
    here.record(
        "missing, not needed", lambda: here.read("large", "single reader", here.path_that_only(last, "missing"))
    )
    here.record("missing, needed", lambda: here.read("large", "single reader", here.path_that_only(0, "missing")))
    for mode in ("contiguous", "windows", "last reads"):
        with at_read(3 if here.rank == last else -1, fail):
            here.record(f"half way, {mode}", lambda mode=mode: here.read("large", mode))  # type: ignore[misc]
    file = here.directory / "large.flashpack"
    word = "diagonal" if here.rank == 0 else "windows"
    here.record("rank 0's strategy", lambda: read_flashpack_file_distributed(file, sharded=True, shard_strategy=word))
    here.record("no such reader", lambda: read_flashpack_file_distributed(file, src=here.world))


def obey_rank_0(here: Rank) -> None:
    """Variables and arguments that set the ranks apart do no harm."""
    before = os.environ["FLASHPACK_SHARD_BYTES"]
    os.environ["FLASHPACK_SHARD_BYTES"] = str(4096 * (here.rank + 3))
    os.environ["FLASHPACK_SHARD_STRATEGY"] = "windows" if here.rank == 0 else "nonsense"

    def read() -> bool:
        storage, metadata = read_flashpack_file_distributed(
            here.directory / "large.flashpack", sharded=here.rank == 0, src=here.rank
        )
        return same(dict(iterate_from_flash_tensor(storage, metadata))["weight"], here.expected["large"]["weight"])

    here.record("rank 0 decides", read)
    os.environ["FLASHPACK_SHARD_BYTES"] = before
    del os.environ["FLASHPACK_SHARD_STRATEGY"]


def lose(mode: str, rank: int, action: Callable[[], None]) -> Callable[[Rank], None]:
    """A rank that is gone half way."""

    def scenario(here: Rank) -> None:
        with at_read(3 if here.rank == rank else -1, action):
            here.record("lost", lambda: here.read("large", mode))

    return scenario


def stay_away(here: Rank) -> None:
    """A rank that never calls."""
    here.record("lost", stall if here.rank == here.world - 1 else lambda: here.read("large", "windows"))


SCENARIOS: dict[str, Callable[[Rank], None]] = {
    "well": read_it_well,
    "assign": assign_it,
    "badly": read_badly,
    "obey": obey_rank_0,
    "kill 0, single reader": lose("single reader", 0, die),
    "kill 1, windows": lose("windows", 1, die),
    "kill 2, contiguous": lose("contiguous", 2, die),
    "stall 1, windows": lose("windows", 1, stall),
    "stay away": stay_away,
}


def main() -> None:
    rank, world, directory, names = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
    torch.set_num_threads(1)
    maybe_init_distributed(rank, rank, world)
    here = Rank(rank, world, directory)
    for name in names:
        SCENARIOS[name](here)
    here.record("end", lambda: True)
    os._exit(0)  # a rank that is gone would be waited for


if __name__ == "__main__":
    main()
