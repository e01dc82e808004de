"""For code that is written for the safetensors package: change the import, keep the rest.

``from penstock.safetensors import safe_open`` and ``from penstock.safetensors.torch import load_file, save_file`` (or
``.numpy``) stand in for the same names there. The functions of the torch module are offered here too.
"""

from ..errors import Error as SafetensorError
from ._safe_open import safe_open
from .torch import load, load_file, load_model, save, save_file, save_model

__all__ = [
    "SafetensorError",
    "load",
    "load_file",
    "load_model",
    "safe_open",
    "save",
    "save_file",
    "save_model",
]
