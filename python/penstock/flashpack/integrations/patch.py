"""patch_integrations: use_flashpack= for the classes of transformers and diffusers, whichever is installed."""

from __future__ import annotations

from ._libraries import is_installed
from ._patching import PATCHES


def patch_integrations() -> None:
    """Makes from_pretrained and save_pretrained of transformers and diffusers take use_flashpack=True.

    Calls without it do what they did. Calling this again changes nothing; `unpatch_integrations` takes it back.
    """
    try:
        if is_installed("diffusers"):
            from .diffusers import patch_diffusers_auto_model

            patch_diffusers_auto_model()
        if is_installed("transformers"):
            from .transformers import patch_transformers_auto_model

            patch_transformers_auto_model()
    except BaseException:
        PATCHES.undo()
        raise


def unpatch_integrations() -> None:
    """Takes back what `patch_integrations` did."""
    PATCHES.undo()
