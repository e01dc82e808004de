"""Weights for SGLang: ``--load-format penstock``, wherever penstock is installed beside it.

SGLang finds `register` by the package's entry point and calls it in each of its processes. It has no registry of
loaders, so `register` hooks two of its functions: the one that knows the names of formats, and the one that chooses a
loader.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any

from ._serving import LOAD_FORMAT, ServingSettings

__all__ = ["register"]


def register() -> None:
    """Makes ``--load-format penstock`` known to SGLang."""
    arguments: Any = import_module("sglang.srt.server_args")
    hooks: Any = import_module("sglang.srt.plugins.hook_registry")
    if LOAD_FORMAT not in arguments.LOAD_FORMAT_CHOICES:
        arguments.add_load_format_choices([LOAD_FORMAT])
        around = hooks.HookType.AROUND
        hooks.HookRegistry.register(
            "sglang.srt.configs.load_config.LoadConfig._verify_load_format", _verify_load_format, around
        )
        hooks.HookRegistry.register("sglang.srt.model_loader.loader.get_model_loader", _get_model_loader, around)


def _verify_load_format(original: Callable[[Any], None], load_config: Any) -> None:
    """Lets our name pass, which is none of SGLang's enumeration."""
    if load_config.load_format != LOAD_FORMAT:
        original(load_config)


def _get_model_loader(original: Callable[[Any, Any], Any], load_config: Any, model_config: Any = None) -> Any:
    """The loader that SGLang would choose for this model, with its weights read by penstock."""
    if load_config.load_format != LOAD_FORMAT:
        return original(load_config, model_config)
    settings = ServingSettings(load_config.model_loader_extra_config or {})
    # That chooses, and its loaders accept, what SGLang itself knows.
    as_auto = copy.copy(load_config)
    as_auto.load_format = import_module("sglang.srt.configs.load_config").LoadFormat.AUTO
    as_auto.model_loader_extra_config = {}
    stock: Any = type(original(as_auto, model_config))
    loader = _reading_with_penstock(stock)(as_auto)
    loader.settings = settings
    return loader


@cache
def _reading_with_penstock(stock: Any) -> Any:
    return type(f"Penstock{stock.__name__}", (_PenstockWeights, stock), {"__module__": __name__})


class _PenstockWeights:
    """What is ours of a loader: the iterator over weights. The rest is SGLang's DefaultModelLoader or one based on it.

    A rank among several reads through the page cache, so that the drive reads a file once. Layers of other draft models
    are not read.
    """

    settings: ServingSettings
    load_config: Any
    counter_before_loading_weights: float
    _prepare_weights: Any
    _filter_mtp_weights: Any
    _MTP_PATTERN: Any

    def _get_weights_iterator(
        self, source: Any, *, resolved_source: Any = None, **_prefetching: bool
    ) -> Iterator[tuple[str, Any]]:
        files = self._find_files(source) if resolved_source is None else list(resolved_source.weight_files)
        draft = self.load_config.draft_model_idx
        served: Any = import_module("sglang.srt.runtime_context").get_model()
        weights = self.settings.stream(
            files, None if draft is None else self._is_of_draft, may_map=not served.weight_loader_disable_mmap
        )
        if draft is not None:
            filtered: Iterator[tuple[str, Any]] = self._filter_mtp_weights(weights, source.prefix, draft)
            return filtered
        if self.counter_before_loading_weights == 0.0:
            self.counter_before_loading_weights = time.perf_counter()
        return ((source.prefix + name, tensor) for name, tensor in weights)

    def _find_files(self, source: Any) -> list[str]:
        folder, files, are_safetensors = self._prepare_weights(
            source.model_or_path, source.revision, source.fall_back_to_pt, source.allow_patterns_overrides
        )
        if are_safetensors and source.model_config is not None:
            loading: Any = import_module("sglang.srt.model_loader.loader")
            files = loading.maybe_add_mtp_safetensors(
                files, folder, "model.safetensors.index.json", source.model_config.hf_config
            )
        return list(files)

    def _is_of_draft(self, name: str) -> bool:
        """Whether it is a weight of this draft model, or of no layer for drafts."""
        match = self._MTP_PATTERN.match(name)
        return match is None or int(match.group(1)) == self.load_config.draft_model_idx
