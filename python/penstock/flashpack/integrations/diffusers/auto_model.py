"""AutoFlashPackModel: the model of a directory or repository, whatever its class."""

from __future__ import annotations

import os
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import ArgumentError
from .._arguments import choose_device, sort_arguments, take_dtype
from .._classes import find_class, with_mixin
from .._files import CONFIG_NAME, find_weights, read_json, weights_name
from .._hub import fetch
from .._libraries import public_name
from .._weights import load_weights
from ._components import is_transformers_class
from .model import FlashPackDiffusersModelMixin

if TYPE_CHECKING:
    import torch

    _AutoModel: Any = object
else:
    _AutoModel = public_name("diffusers", "AutoModel")


class AutoFlashPackModel:
    """Loads models of diffusers or transformers by what their configuration names. Not to be instantiated."""

    def __init__(self) -> None:
        raise ArgumentError("AutoFlashPackModel is not instantiated: use its from_pretrained_flashpack")

    @classmethod
    def from_pretrained(
        cls, pretrained_model_or_path: str | os.PathLike[str], *, use_flashpack: bool = False, **arguments: Any
    ) -> Any:
        """A model from its usual files, as diffusers' AutoModel gives it but with save_pretrained_flashpack."""
        if use_flashpack:
            return cls.from_pretrained_flashpack(pretrained_model_or_path, **arguments)
        model = _AutoModel.from_pretrained(os.fspath(pretrained_model_or_path), **arguments)
        model.__class__ = with_methods(type(model))
        return model

    @classmethod
    def from_pretrained_flashpack(
        cls,
        pretrained_model_or_path: str | os.PathLike[str],
        device: str | torch.device | None = None,
        *,
        subfolder: str | None = None,
        variant: str | None = None,
        trust_remote_code: bool = False,
        **arguments: Any,
    ) -> Any:
        """A model from its FlashPack file. The arguments are those of the models' own from_pretrained_flashpack.

        trust_remote_code: run the code of the model's class that the directory or repository brings along.
        """
        hub = sort_arguments(arguments).hub
        wanted = ("*.json", weights_name(variant), *(["*.py"] if trust_remote_code else []))
        folder = fetch(pretrained_model_or_path, wanted, subfolder, hub)
        rest = {name: value for name, value in arguments.items() if name not in hub}
        config = read_json(folder / CONFIG_NAME)
        if "auto_map" in config and trust_remote_code:
            return _load_custom(folder, config, device, variant, rest)
        model_class = with_methods(_model_class(folder, config))
        return model_class.from_pretrained_flashpack(folder, device, variant=variant, **rest)


def with_methods(model_class: type) -> Any:
    """The class with the FlashPack methods of its library."""
    if is_transformers_class(model_class):
        from ..transformers.model import FlashPackTransformersModelMixin

        return with_mixin(model_class, FlashPackTransformersModelMixin)
    return with_mixin(model_class, FlashPackDiffusersModelMixin)


def _model_class(folder: Path, config: dict[str, Any]) -> type:
    """The class that a configuration names: diffusers writes _class_name, transformers architectures."""
    if isinstance(config.get("_class_name"), str):
        name = config["_class_name"]
        found = find_class(import_module("diffusers"), name)
    else:
        _check_transformers(folder, config)
        name = (config.get("architectures") or ["no class"])[0]
        found = find_class(import_module("transformers"), name)
    if found is None:
        hint = "; trust_remote_code=True runs the code that comes with it" if "auto_map" in config else ""
        raise ArgumentError(f"{folder / CONFIG_NAME}: names {name}, which is no class of its library{hint}")
    return found


def _check_transformers(folder: Path, config: dict[str, Any]) -> None:
    if "model_type" not in config and "architectures" not in config:
        raise ArgumentError(f"{folder / CONFIG_NAME}: names no class of diffusers and none of transformers")
    public_name("transformers", "PreTrainedModel")


def _load_custom(folder: Path, config: dict[str, Any], device: Any, variant: str | None, rest: dict[str, Any]) -> Any:
    """A model whose class comes with it."""
    dtype = take_dtype(rest)
    device = choose_device(device, rest.pop("device_map", None))
    create = partial(_create_custom, folder, config)
    model = load_weights(object, create, find_weights(folder, variant), device, dtype, sort_arguments(rest).assign)
    model.__class__ = with_methods(type(model))
    return model


def _create_custom(folder: Path, config: dict[str, Any]) -> Any:
    if "_class_name" in config:
        return _AutoModel.from_config(folder, trust_remote_code=True)
    auto = next((name for name in config["auto_map"] if name.startswith("AutoModel")), "AutoModel")
    loaded = public_name("transformers", "AutoConfig").from_pretrained(folder, trust_remote_code=True)
    return public_name("transformers", auto).from_config(loaded, trust_remote_code=True)
