"""For code that is written for the safetensors package: change the import, keep the rest.

``from penstock.safetensors import safe_open`` and ``from penstock.safetensors.torch import load_file, save_file`` (or
``.numpy``, ``.flax``, ``.tensorflow``, ``.paddle``, ``.mlx``) stand in for the same names there. The functions of the
torch module are offered here too. docs/safetensors.md says what is the same, and what is not.
"""

from ..errors import Error as SafetensorError
from ._prefetch import PrefetchLoader
from ._safe_open import PySafeSlice, TensorMeta, _safe_open_handle, safe_open
from ._serialize import TensorSpec, deserialize, serialize, serialize_file
from .torch import load, load_file, load_model, save, save_file, save_model

__version__ = "0.8.0"  # of the safetensors package whose names these are

__all__ = [
    "PrefetchLoader",
    "PySafeSlice",
    "SafetensorError",
    "TensorMeta",
    "TensorSpec",
    "_safe_open_handle",
    "deserialize",
    "load",
    "load_file",
    "load_model",
    "safe_open",
    "save",
    "save_file",
    "save_model",
    "serialize",
    "serialize_file",
]
