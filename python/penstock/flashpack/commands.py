"""What the command does, as functions. Unlike the command they replace a file that exists, but never their source."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError

if TYPE_CHECKING:
    import torch

    from .._progress import Progress

__all__ = [
    "convert_to_flashpack",
    "convert_to_flashpack_from_diffusers_repo_id_or_dir",
    "convert_to_flashpack_from_model",
    "convert_to_flashpack_from_state_dict",
    "convert_to_flashpack_from_state_dict_file",
    "convert_to_flashpack_from_transformers_repo_id_or_dir",
    "filter_kwargs_for_method",
    "revert_from_flashpack",
]

_WEIGHTS_NAME = "model.flashpack"
_CONFIG_NAMES = ("config.json", "model_index.json")


def filter_kwargs_for_method(kwargs: dict[str, Any], method: Callable[..., Any]) -> dict[str, Any]:
    """Those of the keywords that a function takes."""
    parameters = inspect.signature(method).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return kwargs
    return {name: value for name, value in kwargs.items() if name in parameters}


def convert_to_flashpack(
    model_or_state_dict_or_path_or_repo_id: str | torch.nn.Module | Mapping[str, torch.Tensor],
    destination_path: str | None = None,
    dtype: torch.dtype | str | None = None,
    ignore_names: list[str] | None = None,
    ignore_prefixes: list[str] | None = None,
    ignore_suffixes: list[str] | None = None,
    use_transformers: bool = False,
    use_diffusers: bool = False,
    silent: bool = True,
    *,
    overwrite: bool = True,
    align_large: bool = False,
    progress: Progress = None,
    **kwargs: Any,
) -> str:
    """Converts a module, a state dict, a file, a folder or a repository of the hub. Returns the path of what was made.

    The weights of a folder or a repository are packed as they are; with use_transformers or use_diffusers the model is
    loaded by its class. kwargs: subfolder, variant, revision and so on, for these. align_large: as of `pack_to_file`.
    """
    from ._convert import Ignored, file_to_flashpack, state_dict_to_flashpack

    source = model_or_state_dict_or_path_or_repo_id
    ignored = Ignored(ignore_names, ignore_prefixes, ignore_suffixes)
    options: dict[str, Any] = {
        "silent": silent,
        "overwrite": overwrite,
        "align_large": align_large,
        "progress": progress,
    }
    if use_transformers and use_diffusers:
        raise ArgumentError("use_transformers and use_diffusers exclude each other")
    library = "transformers" if use_transformers else "diffusers" if use_diffusers else None
    if not isinstance(source, (str, os.PathLike)):
        if destination_path is None:
            raise ArgumentError("a state dict or a module needs a destination")
        state = source if isinstance(source, Mapping) else source.state_dict()
        return state_dict_to_flashpack(state, destination_path, dtype, ignored, **options)
    source = os.fsdecode(source)
    is_part = any(kwargs.get(name) for name in ("subfolder", "variant"))
    if os.path.isfile(source) and (is_part or library is not None):
        raise ArgumentError(f"{source}: is a file; a subfolder, a variant or a library is for folders and repositories")
    if library is None and (os.path.isfile(source) or (_is_folder_of_shards(source) and not is_part)):
        if destination_path is None and os.path.isdir(source):
            destination_path = os.path.join(source, _WEIGHTS_NAME)
        return file_to_flashpack(source, destination_path, dtype, ignored, **options)
    if not os.path.exists(source) and destination_path is None:
        raise ArgumentError(f"{source}: no such file or folder; a repository of the hub needs a destination")
    from .integrations._convert import convert_pretrained

    names = {f"ignore_{part}": value for part, value in ignored._asdict().items()}
    return convert_pretrained(source, destination_path, dtype=dtype, library=library, **names, **options, **kwargs)


# The same by the names that flashpack has for each kind of source, with its arguments.


def convert_to_flashpack_from_state_dict(
    state_dict: Mapping[str, torch.Tensor],
    destination_path: str,
    dtype: torch.dtype | str | None = None,
    ignore_names: list[str] | None = None,
    ignore_prefixes: list[str] | None = None,
    ignore_suffixes: list[str] | None = None,
    silent: bool = True,
) -> str:
    """Saves a state dict. Returns the path."""
    ignored = (ignore_names, ignore_prefixes, ignore_suffixes)
    return convert_to_flashpack(state_dict, destination_path, dtype, *ignored, silent=silent)


def convert_to_flashpack_from_model(
    model: torch.nn.Module,
    destination_path: str,
    dtype: torch.dtype | str | None = None,
    ignore_names: list[str] | None = None,
    ignore_prefixes: list[str] | None = None,
    ignore_suffixes: list[str] | None = None,
    silent: bool = True,
) -> str:
    """Saves a module's state. Returns the path."""
    ignored = (ignore_names, ignore_prefixes, ignore_suffixes)
    return convert_to_flashpack(model, destination_path, dtype, *ignored, silent=silent)


def convert_to_flashpack_from_state_dict_file(
    path: str,
    destination_path: str | None = None,
    dtype: torch.dtype | str | None = None,
    ignore_names: list[str] | None = None,
    ignore_prefixes: list[str] | None = None,
    ignore_suffixes: list[str] | None = None,
    silent: bool = True,
) -> str:
    """Converts a file: safetensors, a torch checkpoint, or another FlashPack file. Returns the path of the new one.

    Without a destination it lies beside the source, with the suffix .flashpack.
    """
    from ._convert import Ignored, file_to_flashpack

    ignored = Ignored(ignore_names, ignore_prefixes, ignore_suffixes)
    return file_to_flashpack(os.fsdecode(path), destination_path, dtype, ignored, silent=silent)


def convert_to_flashpack_from_diffusers_repo_id_or_dir(
    model_dir: str,
    destination_path: str,
    dtype: torch.dtype | str | None = None,
    ignore_names: list[str] | None = None,
    ignore_prefixes: list[str] | None = None,
    ignore_suffixes: list[str] | None = None,
    silent: bool = True,
    **kwargs: Any,
) -> str:
    """Loads a model with diffusers and packs its state. Returns the path of the file. kwargs: subfolder, variant ..."""
    ignored = (ignore_names, ignore_prefixes, ignore_suffixes)
    return convert_to_flashpack(
        model_dir, destination_path, dtype, *ignored, use_diffusers=True, silent=silent, **kwargs
    )


def convert_to_flashpack_from_transformers_repo_id_or_dir(
    model_dir: str,
    destination_path: str,
    dtype: torch.dtype | str | None = None,
    ignore_names: list[str] | None = None,
    ignore_prefixes: list[str] | None = None,
    ignore_suffixes: list[str] | None = None,
    silent: bool = True,
    **kwargs: Any,
) -> str:
    """Loads a model with transformers and packs its state.

    Returns the path of the file. kwargs: subfolder, variant ...
    """
    ignored = (ignore_names, ignore_prefixes, ignore_suffixes)
    return convert_to_flashpack(
        model_dir, destination_path, dtype, *ignored, use_transformers=True, silent=silent, **kwargs
    )


def revert_from_flashpack(
    path: str,
    destination_path: str | None = None,
    silent: bool = True,
    *,
    overwrite: bool = True,
    progress: Progress = None,
) -> str:
    """Converts a FlashPack file to safetensors, or by the destination's suffix to a torch checkpoint. Returns the path.

    Without a destination it lies beside the source, with the suffix .safetensors.
    """
    from ._convert import flashpack_to_file

    return flashpack_to_file(os.fsdecode(path), destination_path, silent=silent, overwrite=overwrite, progress=progress)


def _is_folder_of_shards(path: str) -> bool:
    return os.path.isdir(path) and not any(os.path.exists(os.path.join(path, name)) for name in _CONFIG_NAMES)
