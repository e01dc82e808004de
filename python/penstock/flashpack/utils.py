"""Small helpers: element types by name, durations and counts for people, names to leave out."""

from __future__ import annotations

import importlib.util
import logging
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .._dtypes import BITS
from .._torch import NAMES
from ..errors import ArgumentError, LibraryError, UnsupportedTypeError

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np

logger = logging.getLogger("flashpack")

# Versions of torch that have an unpacked 4-bit type.
float4_e2m1fn: torch.dtype | None = getattr(torch, "float4_e2m1fn", None)


def string_to_dtype(string: str) -> torch.dtype:
    """torch's dtype of this name; "half" and the like are names too."""
    dtype = getattr(torch, string, None) if isinstance(string, str) else None
    if not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"Unsupported dtype string in metadata: {string!r} is not the name of a torch dtype")
    return dtype


def dtype_to_string(dtype: torch.dtype) -> str:
    """The name of a dtype in a file."""
    if not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"Unsupported dtype in metadata: {dtype!r} is not a torch dtype")
    return str(dtype).removeprefix("torch.")


def checked_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype; refused when a file can't hold it."""
    name = NAMES.get(dtype) if isinstance(dtype, torch.dtype) else None
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedTypeError(f"Unsupported dtype for packing: {dtype!r} is not a torch dtype")
    if name is None or BITS[name] < 8:
        what = "4-bit data types are not supported" if name == "F4" else "Unsupported dtype for packing"
        raise UnsupportedTypeError(f"{what}: a FlashPack file can't hold elements of {dtype}")
    return dtype


def get_packing_dtype(dtype: torch.dtype) -> torch.dtype:
    """A dtype of the same width that NumPy has too."""
    checked_dtype(dtype)
    if dtype in (torch.bfloat16, torch.complex32):
        return torch.uint16 if dtype == torch.bfloat16 else torch.uint32
    return torch.uint8 if dtype.is_floating_point and dtype.itemsize == 1 else dtype


def torch_dtype_to_numpy_dtype(dtype: torch.dtype) -> type[np.generic]:
    """NumPy's type of the elements, or of their bits where it has none."""
    import numpy as np

    name = dtype_to_string(get_packing_dtype(dtype))
    found: type[np.generic] = np.bool_ if name == "bool" else getattr(np, name)
    return found


def human_duration(seconds: float) -> str:
    """10.90µs, 3.20ms, 1.50s, 2m5s, 1h0m5s."""
    for limit, scale, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (60.0, 1.0, "s")):
        if seconds < limit:
            return f"{seconds * scale:.2f}{unit}"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"


def human_num_elements(elements: int) -> str:
    """999, 1.50K, 7.24B."""
    for scale, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if elements > scale:
            return f"{elements / scale:.2f}{unit}"
    return str(elements)


@contextmanager
def timer(name: str, silent: bool = False) -> Iterator[None]:
    """Prints how long its body took, if that ended well."""
    start = time.perf_counter()
    yield
    print_phases({name: time.perf_counter() - start}, silent)


def print_phases(phases: Mapping[str, float], silent: bool) -> None:
    """A line for each phase and its seconds."""
    if not silent:
        for name, seconds in phases.items():
            print(f"{name}: {human_duration(seconds)}")


def is_ignored_tensor_name(
    name: str,
    ignore_names: Collection[str] | None = None,
    ignore_prefixes: Collection[str] | None = None,
    ignore_suffixes: Collection[str] | None = None,
) -> bool:
    """Whether a name is among those to leave out."""
    return (
        name in _texts(ignore_names)
        or name.startswith(_texts(ignore_prefixes))
        or name.endswith(_texts(ignore_suffixes))
    )


def _texts(texts: Collection[str] | None) -> tuple[str, ...]:
    """A single text is one, not its letters."""
    return (texts,) if isinstance(texts, str) else tuple(texts or ())


def filter_state_dict(
    state_dict: dict[str, torch.Tensor],
    ignore_names: Collection[str] | None = None,
    ignore_prefixes: Collection[str] | None = None,
    ignore_suffixes: Collection[str] | None = None,
) -> dict[str, torch.Tensor]:
    """The state dict without the names to leave out."""
    return {
        name: tensor
        for name, tensor in state_dict.items()
        if not is_ignored_tensor_name(name, ignore_names, ignore_prefixes, ignore_suffixes)
    }


def get_module_and_attribute(model: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    """The submodule that holds a parameter or buffer, and its name there."""
    path, _, attribute = name.rpartition(".")
    try:
        return model.get_submodule(path), attribute
    except AttributeError:
        raise ArgumentError(f"Module not found: {path}, in {type(model).__name__}") from None


def maybe_init_distributed(
    rank: int | None = None, local_rank: int | None = None, world_size: int | None = None
) -> None:
    """Starts torch.distributed, unless it runs or there is only one process.

    What is not given comes from the environment (RANK, LOCAL_RANK, WORLD_SIZE). With GPUs the backend is nccl, else
    gloo.
    """
    rank = _from_environment("RANK", 0) if rank is None else rank
    local_rank = _from_environment("LOCAL_RANK", rank) if local_rank is None else local_rank
    world_size = _from_environment("WORLD_SIZE", 1) if world_size is None else world_size
    if dist.is_initialized() or world_size <= 1:
        return
    arguments: dict[str, Any] = {"init_method": "env://", "rank": rank, "world_size": world_size}
    if torch.cuda.is_available() and dist.is_nccl_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, **arguments)
    else:
        dist.init_process_group("gloo", **arguments)


def _from_environment(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise ArgumentError(f"the environment variable {name} is {text!r}, not a number") from None


def effective_read_threads(requested: int, *, floor: int = 1) -> int:
    """A number of threads, held to the processors that this process may use, or to `floor` if those are fewer.

    FLASHPACK_NO_THREAD_CLAMP=1 leaves it as it is. The engine does not ask: it chooses its own threads.
    """
    if os.environ.get("FLASHPACK_NO_THREAD_CLAMP", "").strip().lower() in ("1", "true", "yes", "on"):
        return max(1, requested)
    return max(1, min(requested, max(len(os.sched_getaffinity(0)), floor)))


def require_zstandard() -> ModuleType:
    """The zstandard module. Nothing here needs it: compressed ("fpz") files are refused."""
    try:
        return importlib.import_module("zstandard")
    except ImportError as problem:
        raise LibraryError(
            "the optional 'zstandard' package, which fpz compression requires, is not installed: pip install zstandard"
        ) from problem


def diffusers_is_available() -> bool:
    """Whether diffusers is installed."""
    return importlib.util.find_spec("diffusers") is not None


def transformers_is_available() -> bool:
    """Whether transformers is installed."""
    return importlib.util.find_spec("transformers") is not None
