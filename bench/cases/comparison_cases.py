"""The comparisons that FlashPack publishes: a state dict into a model that is there, and whole models saved and loaded.

Its own scripts download GPT-2 and others; these have tensors of the same names, shapes and types, with random contents.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from cases import MODEL_LOAD, MODEL_SAVE, STATE_DICT, STATE_DICT_COLD, Case, Race, Start, Task
from cases.checkpoint_cases import torch_load as load_torch_file
from cases.flashpack_cases import assign, assign_in_parallel, pack, pack_and_sync
from cases.flashpack_cases import library as flashpack_of
from cases.safetensors_cases import save as save_safetensors
from flashpack_file import FLASHPACK_INPUT, FLASHPACK_OUTPUT
from tensors import empty_module, filled_module
from torch_file import ZIP_INPUT


def into_model(load: Callable[[Any, str], None], task: Task) -> Callable[[], Any]:
    """A model that has weights is given others."""
    module = filled_module(task.file)

    def load_and_list() -> dict[str, Any]:
        load(module, task.file)
        return {name: parameter.detach() for name, parameter in module.named_parameters()}

    return load_and_list


def torch_load(task: Task) -> Callable[[], Any]:
    load = load_torch_file()(task)  # which also imports what is not to be measured
    return into_model(lambda module, _: module.load_state_dict(load()), task)


def safetensors_load(task: Task) -> Callable[[], Any]:
    from safetensors.torch import load_file

    return into_model(lambda module, file: module.load_state_dict(load_file(file)), task)


def flashpack_assign(ours: bool, parallel: bool = False) -> Start:
    def start(task: Task) -> Callable[[], Any]:
        if parallel:
            os.environ["FLASHPACK_CPU_PARALLEL_READ"] = "1"
        return into_model(flashpack_of(ours).assign_from_file, task)

    return start


def penstock_load_into(task: Task) -> Callable[[], Any]:
    import penstock
    import penstock._numpy  # a first call's imports are not what is measured
    import penstock._torch

    return into_model(lambda module, file: penstock.load_into(module, file, assign=True), task)


def accelerate_load(task: Task) -> Callable[[], Any]:
    """What from_pretrained does in FlashPack's own comparison, once the model's class is known."""
    from accelerate import load_checkpoint_in_model

    logging.getLogger("accelerate").setLevel(logging.ERROR)  # it misses metadata that it does not need
    module = empty_module(task.file)

    def load_and_list() -> dict[str, Any]:
        load_checkpoint_in_model(module, task.file, device_map={"": "cpu"})
        return {name: parameter.detach() for name, parameter in module.named_parameters()}

    return load_and_list


def state_dict_cases(race: Race) -> list[Case]:
    return [
        Case("torch.load + load_state_dict", race, "peer", start=torch_load, **ZIP_INPUT),
        Case("safetensors + load_state_dict", race, "peer", start=safetensors_load),
        Case("flashpack", race, "peer", start=flashpack_assign(ours=False), **FLASHPACK_INPUT),
        Case("flashpack, parallel", race, "peer", start=flashpack_assign(False, parallel=True), **FLASHPACK_INPUT),
        Case("penstock.flashpack", race, "ours", start=flashpack_assign(ours=True), **FLASHPACK_INPUT),
        Case("penstock.load_into, safetensors", race, "ours", start=penstock_load_into),
    ]


CASES = [
    *state_dict_cases(STATE_DICT),
    *state_dict_cases(STATE_DICT_COLD),
    Case("accelerate", MODEL_LOAD, "peer", start=accelerate_load),
    Case("flashpack", MODEL_LOAD, "peer", start=assign(ours=False), **FLASHPACK_INPUT),
    Case("flashpack, parallel", MODEL_LOAD, "peer", start=assign_in_parallel, **FLASHPACK_INPUT),
    Case("penstock.flashpack", MODEL_LOAD, "ours", start=assign(ours=True), **FLASHPACK_INPUT),
    Case("safetensors + fsync", MODEL_SAVE, "peer", start=save_safetensors),
    Case("flashpack + fsync", MODEL_SAVE, "peer", start=pack_and_sync, **FLASHPACK_OUTPUT),
    Case("penstock.flashpack", MODEL_SAVE, "ours", start=pack, **FLASHPACK_OUTPUT),
]
