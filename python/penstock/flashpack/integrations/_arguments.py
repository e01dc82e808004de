"""The arguments of from_pretrained_flashpack, sorted by whom they are for."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ...errors import ArgumentError

# For huggingface_hub.
_HUB = frozenset({"cache_dir", "force_download", "local_dir", "local_files_only", "proxies", "revision", "token"})

# For assign_from_file.
_ASSIGN = frozenset(
    {
        "chunk_bytes",
        "coerce_dtype",
        "distributed_shard_strategy",
        "distributed_sharded",
        "ignore_names",
        "ignore_prefixes",
        "ignore_suffixes",
        "keep_flash_ref_on_model",
        "local_rank",
        "num_streams",
        "rank",
        "silent",
        "strict",
        "strict_buffers",
        "strict_params",
        "use_distributed_loading",
        "world_size",
    }
)

# How other loaders read other files, and what transformers' Auto classes pass on for themselves.
_WITHOUT_MEANING_HERE = frozenset(
    {
        "_commit_hash",
        "_from_auto",
        "adapter_kwargs",
        "code_revision",
        "disable_mmap",
        "from_flax",
        "from_tf",
        "local_dir_use_symlinks",
        "low_cpu_mem_usage",
        "max_memory",
        "offload_folder",
        "offload_state_dict",
        "resume_download",
        "trust_remote_code",
        "use_flashpack",
        "use_safetensors",
        "weights_only",
    }
)


class Sorted(NamedTuple):
    """The arguments, by whom they are for."""

    hub: dict[str, Any]
    assign: dict[str, Any]
    rest: dict[str, Any]


def sort_arguments(arguments: dict[str, Any]) -> Sorted:
    """Sorts keyword arguments. `rest` is the model's or pipeline's own."""
    if arguments.get("quantization_config") is not None:
        raise ArgumentError("quantization_config is not supported: a FlashPack file is loaded as it was stored")
    arguments = {**arguments, **(arguments.get("flashpack_kwargs") or {})}
    taken = _HUB | _ASSIGN | _WITHOUT_MEANING_HERE | {"flashpack_kwargs", "quantization_config"}
    return Sorted(
        {name: value for name, value in arguments.items() if name in _HUB},
        {name: value for name, value in arguments.items() if name in _ASSIGN},
        {name: value for name, value in arguments.items() if name not in taken},
    )


def take_dtype(arguments: dict[str, Any]) -> Any:
    """Takes dtype= or its older name torch_dtype= out. "auto", which is what the file has, is None."""
    older = arguments.pop("torch_dtype", None)
    dtype = arguments.pop("dtype", None)
    dtype = older if dtype is None else dtype
    return None if isinstance(dtype, str) and dtype == "auto" else dtype


def checked_dtype(dtype: Any) -> torch.dtype | None:
    """The element type that a model is asked for: a torch.dtype, its name, or None."""
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if found is not None and not isinstance(found, torch.dtype):
        raise ArgumentError(f"dtype is a torch.dtype, not {dtype!r}")
    if isinstance(dtype, str) and found is None:
        raise ArgumentError(f"torch has no dtype {dtype!r}")
    if found is not None and not found.is_floating_point:
        raise ArgumentError(f"a model's dtype is a floating one, not {found}")
    return found


def choose_device(device: Any, device_map: Any) -> torch.device:
    """One device from device=, or from a device_map= that names one for everything."""
    if device_map is not None and device is not None:
        raise ArgumentError("give device or device_map, not both")
    if isinstance(device_map, dict):
        if set(device_map) != {""}:
            raise ArgumentError("a device_map has one entry here, '', for the whole model")
        device_map = device_map[""]
    if isinstance(device_map, str) and device_map in {"auto", "balanced", "balanced_low_0", "sequential"}:
        raise ArgumentError(f"device_map={device_map!r} is not supported: a FlashPack file is loaded onto one device")
    chosen = device if device_map is None else device_map
    return torch.device("cpu" if chosen is None else chosen)


def of_component(value: Any, component: str) -> Any:
    """The value that a component gets, where a dict gives one per component (and "default" for the others)."""
    return value.get(component, value.get("default")) if isinstance(value, dict) else value
