"""FlashPack for transformers: a mixin for its models, and use_flashpack= for its own classes."""

from .model import FlashPackTransformersModelMixin
from .patch import patch_transformers_auto_model

__all__ = ["FlashPackTransformersModelMixin", "patch_transformers_auto_model"]
