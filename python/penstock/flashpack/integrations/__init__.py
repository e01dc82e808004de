"""FlashPack for other libraries: penstock.flashpack.integrations.transformers and .diffusers.

Nothing of theirs is imported here.
"""

from ._install import install_as_flashpack, uninstall_as_flashpack
from .patch import patch_integrations, unpatch_integrations

__all__ = ["install_as_flashpack", "patch_integrations", "uninstall_as_flashpack", "unpatch_integrations"]
