"""install_into_deepspeed: DeepSpeed's engines save and load by penstock's."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed as dist

from .._fork import free_in_child
from .._import_watch import ImportWatch
from .._steps import remove_dead
from ._deepspeed_engine import DeepSpeedCheckpointEngine

if TYPE_CHECKING:
    from types import TracebackType

_FACTORY = "create_checkpoint_engine"
_RUNTIME = "deepspeed.runtime.engine"
_CLASS = "DeepSpeedEngine"
_PIPELINE = "PipelineEngine"
_SAVE, _LOAD = "save_checkpoint", "load_checkpoint"
_FACTORY_MODULES = (
    "deepspeed.runtime.checkpoint_engine.utils",  # which defines it
    "deepspeed.runtime.checkpoint_engine",
    _RUNTIME,
)
_DEFAULT_TIMEOUT = 600.0
_KNOWN_VERSION = "0.19.8"


class DeepSpeedInstallation:
    """What `install_into_deepspeed` returns: `undo` takes that call back, as the end of a ``with`` block does."""

    def __init__(self) -> None:
        _PATCHES.turn_on(self)

    def undo(self) -> None:
        """Takes the call back: without any other DeepSpeed is as it was. A second time is nothing."""
        _PATCHES.turn_off(self)

    def __enter__(self) -> DeepSpeedInstallation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<penstock.fastpersist in deepspeed{'' if _PATCHES.is_wanted_by(self) else ', undone'}>"


def install_into_deepspeed() -> DeepSpeedInstallation:
    """From here on ``engine.save_checkpoint`` and ``engine.load_checkpoint`` of DeepSpeed run on penstock.

        import penstock.fastpersist

        penstock.fastpersist.install_into_deepspeed()
        engine, *_ = deepspeed.initialize(model=model, config=config)

    The JSON configuration stays as it is: "checkpoint" and "aio" are taken from it. Without "writer" files are saved by
    the engine, before ``save_checkpoint`` returns. It may be called before or after deepspeed is imported, and must be
    before ``deepspeed.initialize``, which makes the checkpoint engine.

    A tag's directory appears whole, with the files of every rank, when the drive has all of it; `latest` names it only
    then. Files are ordinary: DeepSpeed without penstock loads them, and penstock loads DeepSpeed's.

    Returns what takes it back: ``install_into_deepspeed().undo()``, or ``with install_into_deepspeed(): ...``. Calls
    may be nested, repeated, and made from any thread. Engines that were made meanwhile keep penstock's.
    """
    return DeepSpeedInstallation()


class _Pair(NamedTuple):
    original: Any
    replacement: Any


class _Patches:
    """What is replaced in DeepSpeed's modules. Every change is made under one lock; calls ask `is_on` without it."""

    def __init__(self) -> None:
        self._lock = free_in_child(threading.RLock())
        self._callers: set[object] = set()
        self._pairs: dict[str, _Pair] = {}
        self._watch = ImportWatch(self._wants, self._adopt)

    @property
    def is_on(self) -> bool:
        return bool(self._callers)

    def is_wanted_by(self, caller: object) -> bool:
        return caller in self._callers

    def turn_on(self, caller: object) -> None:
        with self._lock:
            self._callers.add(caller)
            self._watch.set(True)
        for name in _FACTORY_MODULES:
            if name in sys.modules:
                importlib.import_module(name)  # waits where another thread is importing it
            self._adopt(name)

    def turn_off(self, caller: object) -> None:
        with self._lock:
            self._callers.discard(caller)
            if self._callers:
                return
            self._watch.set(False)
            for name in _FACTORY_MODULES:
                self._restore_in(name)

    @staticmethod
    def _wants(module: str) -> bool:
        return module in _FACTORY_MODULES

    def _adopt(self, module: str) -> None:
        with self._lock:
            if self._callers:
                self._replace_in(module)

    def _replace_in(self, name: str) -> None:
        module = sys.modules.get(name)
        if module is None:
            return
        self._put(module, _FACTORY, _factory_replacement)
        if name == _RUNTIME:
            for method, make in ((_SAVE, _save_replacement), (_LOAD, _load_replacement)):
                self._put(getattr(module, _CLASS, module), method, make)

    def _put(self, owner: Any, name: str, make: Callable[[Any, Callable[[], bool]], Any]) -> None:
        current = vars(owner).get(name)
        if current is None:
            _warn(f"deepspeed has no {owner.__name__}.{name}; penstock knows deepspeed {_KNOWN_VERSION}")
            return
        pair = self._pairs.get(name)
        if pair is not None and current is pair.replacement:
            return
        if pair is None or current is not pair.original:
            if getattr(current, "__module__", "").partition(".")[0] != "deepspeed":
                return  # somebody has put another engine there, which goes on
            pair = self._pairs[name] = _Pair(current, make(current, lambda: self.is_on))
        setattr(owner, name, pair.replacement)

    def _restore_in(self, name: str) -> None:
        module = sys.modules.get(name)
        if not isinstance(module, ModuleType):
            return
        owners: list[tuple[Any, str]] = [(module, _FACTORY)]
        if name == _RUNTIME:
            owners += [(getattr(module, _CLASS, module), method) for method in (_SAVE, _LOAD)]
        for owner, attribute in owners:
            pair = self._pairs.get(attribute)
            if pair is not None and vars(owner).get(attribute) is pair.replacement:
                setattr(owner, attribute, pair.original)


_PATCHES = _Patches()


def _factory_replacement(original: Any, is_on: Callable[[], bool]) -> Any:
    @functools.wraps(original)
    def create_checkpoint_engine(
        config_params: Any, groups: Any, zero_stage: Any, has_moe_layers: Any, optimize_dp_state: Any
    ) -> Any:
        if not is_on() or _is_left_to_deepspeed(config_params):
            return original(config_params, groups, zero_stage, has_moe_layers, optimize_dp_state)
        settings = _settings(config_params, groups, bool(has_moe_layers))
        return DeepSpeedCheckpointEngine(settings, bool(optimize_dp_state), timeout=_timeout())

    return create_checkpoint_engine


def _save_replacement(original: Any, is_on: Callable[[], bool]) -> Any:
    @functools.wraps(original)
    def save_checkpoint(
        self: Any,
        save_dir: Any,
        tag: Any = None,
        client_state: Any = None,
        save_latest: Any = True,
        *more: Any,
        **named: Any,
    ) -> Any:
        client_state = {} if client_state is None else client_state
        engine = self.checkpoint_engine
        if not isinstance(engine, DeepSpeedCheckpointEngine):
            return original(self, save_dir, tag, client_state, save_latest, *more, **named)
        with engine.saving(save_latest):
            result = original(self, save_dir, tag, client_state, False, *more, **named)
        if any(base.__name__ == _PIPELINE for base in type(self).__mro__):
            engine.finish()  # its train_batch would never commit what is decoupled
        return result

    return save_checkpoint


def _load_replacement(original: Any, is_on: Callable[[], bool]) -> Any:
    @functools.wraps(original)
    def load_checkpoint(self: Any, load_dir: Any, *args: Any, **more: Any) -> Any:
        engine = self.checkpoint_engine
        if isinstance(engine, DeepSpeedCheckpointEngine):
            engine.finish()
            remove_dead(load_dir)  # where a kill left a tag between two names, it has its own again
        return original(self, load_dir, *args, **more)

    return load_checkpoint


def _is_left_to_deepspeed(config_params: Any) -> bool:
    """Whether its own engine is to save, of which the user is told where it is not what they asked for."""
    has_writer = config_params is not None and config_params.checkpoint_config["writer"] is not None
    if not has_writer and _look_up(config_params, "datastates_config", "enabled"):
        return True
    reason = ""
    if _look_up(config_params, "use_node_local_storage"):
        reason = "use_node_local_storage: every machine would have a directory of its own"
    if str(_look_up(config_params, "zero_config", "offload_optimizer", "device")).endswith("nvme"):
        reason = "offload_optimizer to nvme: DeepSpeed copies its swapped files into the tag's directory itself"
    if reason:
        _warn(f"checkpoints are saved by DeepSpeed's engine, not by penstock's: {reason}")
    return bool(reason)


def _settings(config_params: Any, groups: Any, has_moe_layers: bool) -> Any:
    """The JSON's own words: what it does not say is for the engine to choose."""
    words = getattr(config_params, "_param_dict", None)
    words = words if isinstance(words, Mapping) else {}
    checkpoint = dict(words.get("checkpoint") or {})
    writer = dict(checkpoint.get("writer") or {})
    if writer.get("data_parallel") is not None:
        reason = "mixtures of experts" if has_moe_layers else "pipelines and model parallelism"
        if has_moe_layers or getattr(groups, "mpu", None) is not None:
            _warn(f"checkpoint.writer.data_parallel is left out: with {reason} not every rank saves the same files")
            del writer["data_parallel"]
    return {"checkpoint": {**checkpoint, "writer": writer}, "aio": words.get("aio")}


def _timeout() -> float:
    """As long as ranks wait for each other elsewhere in DeepSpeed."""
    limit = getattr(sys.modules.get("deepspeed.constants"), "default_pg_timeout", None)
    return float(limit.total_seconds()) if limit is not None else _DEFAULT_TIMEOUT


def _look_up(found: Any, *names: str) -> Any:
    for name in names:
        found = getattr(found, name, None)
    return found


def _warn(message: str) -> None:
    """Told once, not by every rank."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_rank() == 0:
        warnings.warn(message, RuntimeWarning, stacklevel=2)
