"""use_flashpack= for the classes of diffusers."""

from __future__ import annotations

from functools import partial

from .._libraries import public_name
from .._patching import PATCHES, with_flashpack
from .model import load_model, save_model
from .pipeline import load_pipeline, save_pipeline


def patch_diffusers_auto_model() -> None:
    """Makes models and pipelines take use_flashpack=True to load and to save, without the flashpack package."""
    for base, load, save in (
        (public_name("diffusers", "ModelMixin"), load_model, save_model),
        (public_name("diffusers", "DiffusionPipeline"), load_pipeline, save_pipeline),
    ):
        PATCHES.replace(base, "from_pretrained", partial(with_flashpack, load))
        PATCHES.replace(base, "save_pretrained", partial(with_flashpack, save))
        PATCHES.add(base, "from_pretrained_flashpack", classmethod(load))
        PATCHES.add(base, "save_pretrained_flashpack", save)
