"""FlashPack for diffusers: mixins for its models and pipelines, and use_flashpack= for its own classes."""

from .auto_model import AutoFlashPackModel
from .model import FlashPackDiffusersModelMixin
from .patch import patch_diffusers_auto_model
from .pipeline import FlashPackDiffusionPipeline, FlashPackDiffusionPipine

__all__ = [
    "AutoFlashPackModel",
    "FlashPackDiffusersModelMixin",
    "FlashPackDiffusionPipeline",
    "FlashPackDiffusionPipine",
    "patch_diffusers_auto_model",
]
