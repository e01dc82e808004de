"""What the loaders for vLLM and SGLang have in common: their settings, the stream of weights, its progress."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from .._load import stream
from .._nearest import nearest
from .._options import IoTuning, load_options
from .._progress import Callback
from .._reader import open as open_checkpoint
from ..errors import ArgumentError

LOAD_FORMAT = "penstock"

_KEYS = ("device", "cache", "verify", "max_buffer", "landing", *IoTuning.__annotations__)
_WHERE = "model_loader_extra_config"
# A line each: what a server prints goes to a log.
_BAR_FORMAT = "{desc}: {percentage:3.0f}% | {n_fmt} of {total_fmt} [{elapsed}, {rate_fmt}]\n"


class ServingSettings:
    """What a server's ``--model-loader-extra-config`` says: arguments of `penstock.stream`, by their names."""

    def __init__(self, config: Any, *, known_to_server: Collection[str] = ()) -> None:
        if not isinstance(config, Mapping):
            raise ArgumentError(f"{_WHERE}: an object with names and values was expected, not {config!r}")
        known = [*_KEYS, *known_to_server]
        for key in config:
            if key not in known:
                near = nearest(str(key), known)
                meant = f"; the nearest is {near[0]!r}" if near else ""
                raise ArgumentError(f"{_WHERE}: there is no {key!r}{meant}; there are {', '.join(sorted(known))}")
        self.for_server = {key: config[key] for key in config if key in known_to_server}
        self._device = config.get("device", "cpu")
        self._arguments = {key: config[key] for key in config if key in _KEYS and key != "device"}
        self._check()

    def _check(self) -> None:
        """Refuses values that no load takes when the server starts."""
        if not isinstance(self._device, str):
            raise ArgumentError(f"{_WHERE}: device must be a name, not {self._device!r}")
        try:
            load_options(**self._arguments)
        except (ArgumentError, TypeError) as problem:
            raise ArgumentError(f"{_WHERE}: {problem}") from problem

    def stream(
        self,
        files: Sequence[str],
        wanted: Callable[[str], bool] | None,
        *,
        may_map: bool = True,
        with_bar: bool = True,
    ) -> Iterator[tuple[str, Any]]:
        """The weights in these files; `wanted` judges their names, and what it does not want is not read."""
        arguments = dict(self._arguments)
        rank, ranks = _rank()
        if "cache" not in arguments:
            cache = _cache_for_ranks(files) if ranks > 1 else "auto"
            arguments["cache"] = cache if may_map or cache != "auto" else "copy"
        device = f"cuda:{torch.cuda.current_device()}" if self._device == "cuda" else self._device
        progress: Callback | None = _Bar() if with_bar and rank == 0 else None
        return stream(files, device, select=wanted, framework="torch", progress=progress, **arguments)


def _rank() -> tuple[int, int]:
    """Which rank of how many."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def _cache_for_ranks(files: Sequence[str]) -> str:
    """Every rank reads the same files: through the page cache, so that the drive reads them once."""
    with open_checkpoint(files) as reader:
        return "auto" if 2 * reader.resident_bytes >= reader.nbytes else "buffered"


class _Bar:
    """tqdm, which both servers show, over bytes."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = import_module("tqdm.auto").tqdm(
                desc="Loading weights with penstock",
                total=total,
                unit="B",
                unit_scale=True,
                unit_divisor=1024,
                mininterval=2,
                bar_format=_BAR_FORMAT,
            )
        self._bar.update(done - self._bar.n)
        if done == total:
            self._bar.close()
