"""Weights for vLLM: ``vllm serve MODEL --load-format penstock``, wherever penstock is installed beside it.

vLLM finds `register` by the package's entry point and calls it in each of its processes.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from ..errors import ArgumentError
from ._serving import LOAD_FORMAT, ServingSettings

__all__ = ["PenstockModelLoader", "register"]

_loaders: Any = import_module("vllm.model_executor.model_loader")
_utils: Any = import_module("vllm.model_executor.model_loader.weight_utils")
_DefaultModelLoader: Any = _loaders.DefaultModelLoader


def register() -> None:
    """Makes ``load_format="penstock"`` known to vLLM."""
    if _loaders._LOAD_FORMAT_TO_MODEL_LOADER.get(LOAD_FORMAT) is not PenstockModelLoader:
        _loaders.register_model_loader(LOAD_FORMAT)(PenstockModelLoader)


class PenstockModelLoader(_DefaultModelLoader):  # type: ignore[misc]
    """vLLM's own loader, with the bytes moved by `penstock.stream`.

    Files are found, downloaded and filtered as for ``load_format="auto"``. Weights that this rank's model has no use
    for (experts of other ranks, those that the model itself says it does not load) are not read. A rank among several
    reads through the page cache, so that the drive reads a file once.

    load_config: its model_loader_extra_config has arguments of `penstock.stream`: device (default: the host; "cuda" is
        this rank's GPU), cache, verify, max_buffer, landing, memory_budget, gds, threads, backend, block_size,
        queue_depth; and vLLM's own enable_weights_track.
    """

    counter_before_loading_weights: float

    def __init__(self, load_config: Any) -> None:
        self._settings = ServingSettings(
            load_config.model_loader_extra_config, known_to_server=("enable_weights_track",)
        )
        # The base class refuses formats and keys that are not its own.
        as_auto = copy.copy(load_config)
        as_auto.load_format = "auto"
        as_auto.model_loader_extra_config = self._settings.for_server
        super().__init__(as_auto)

    def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, Any]]:
        if self.load_config.safetensors_load_strategy == "torchao":  # vLLM puts subclasses of tensors together
            weights: Iterator[tuple[str, Any]] = super()._get_weights_iterator(source)
            return weights
        folder, files, are_safetensors, index = self._prepare_weights(
            source.model_or_path,
            source.subfolder,
            source.revision,
            source.fall_back_to_pt,
            source.allow_patterns_overrides,
        )
        if are_safetensors:
            files = self._with_encoder(source, folder, files, index)
        weights = self._settings.stream(sorted(files), self._wanted(source), with_bar=self.load_config.use_tqdm_on_load)
        if self.counter_before_loading_weights == 0.0:
            self.counter_before_loading_weights = time.perf_counter()
        return ((source.prefix + name, tensor) for name, tensor in weights)

    def _with_encoder(self, source: Any, folder: str, files: list[str], index: str) -> list[str]:
        """All files; where the encoder alone is served, those with something of it."""
        prefixes = getattr(self, "_encoder_only_lm_prefixes", None)
        if prefixes is None:
            return files
        found: list[str] = _utils.filter_mm_encoder_only_safetensors_files(
            files, folder, index, prefixes, weights_mapper=self._encoder_only_weights_mapper
        )
        if not found:
            raise ArgumentError(f"{source.model_or_path}: no file has weights of the encoder; all are of {prefixes}")
        return found

    def _wanted(self, source: Any) -> Callable[[str], bool] | None:
        """Which weights this rank's model has a use for, by their names in the files; None for all."""
        experts = self.local_expert_ids
        is_unused: Callable[[str], bool] | None = getattr(source, "is_unused_weight", None)
        if experts is None and is_unused is None:
            return None
        is_of_others: Callable[[str, Any], bool] = _utils.should_skip_weight
        return lambda name: not is_of_others(name, experts) and not (is_unused is not None and is_unused(name))
