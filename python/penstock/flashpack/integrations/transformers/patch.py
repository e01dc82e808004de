"""use_flashpack= for the classes of transformers."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from .._libraries import public_name
from .._patching import PATCHES, with_flashpack
from .model import load_model, save_model


def patch_transformers_auto_model() -> None:
    """Makes every model class, and through them the Auto classes, take use_flashpack=True to load and to save."""
    base = public_name("transformers", "PreTrainedModel")
    PATCHES.replace(base, "from_pretrained", partial(with_flashpack, load_model))
    PATCHES.replace(base, "save_pretrained", partial(with_flashpack, save_model))
    PATCHES.add(base, "from_pretrained_flashpack", classmethod(load_model))
    PATCHES.add(base, "save_pretrained_flashpack", save_model)
    for auto in _auto_classes():
        PATCHES.add(auto, "from_pretrained_flashpack", classmethod(_from_pretrained_flashpack))


def _auto_classes() -> list[Any]:
    names = [name for name in dir(import_module("transformers")) if name.startswith("AutoModel")]
    return [public_name("transformers", name) for name in names]


def _from_pretrained_flashpack(cls: Any, /, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
    """from_pretrained with use_flashpack=True."""
    return cls.from_pretrained(pretrained_model_name_or_path, *args, use_flashpack=True, **kwargs)
