"""Whole models to FlashPack: the weights of a directory or of a repository of the hub."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._files import inspect
from ...errors import ArgumentError, FormatError, NotFoundError
from .._convert import Ignored, check_target, file_to_flashpack, parsed_dtype, state_dict_to_flashpack
from ._classes import find_class
from ._files import CONFIG_NAME, read_json, weights_name
from ._hub import fetch
from ._libraries import public_name

if TYPE_CHECKING:
    import torch

    from ..._progress import Progress

# By preference.
_STEMS = ("model", "diffusion_pytorch_model", "pytorch_model")
_SUFFIXES = ("safetensors", "bin")
_CONFIGURATIONS = (CONFIG_NAME, "generation_config.json")


def convert_pretrained(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str] | None = None,
    *,
    subfolder: str | None = None,
    variant: str | None = None,
    dtype: torch.dtype | str | None = None,
    ignore_names: list[str] | None = None,
    ignore_prefixes: list[str] | None = None,
    ignore_suffixes: list[str] | None = None,
    library: str | None = None,
    overwrite: bool = False,
    silent: bool = True,
    progress: Progress = None,
    align_large: bool = False,
    **hub: Any,
) -> str:
    """Packs the weights of a model directory or repository. Returns the path of the file.

    destination: a file, NAME.flashpack; or a directory, which gets model.flashpack (model.VARIANT.flashpack) and the
        configuration. Without one, a local directory gets the file beside its weights; a repository needs one.
    library: "transformers" or "diffusers" loads the model by its class, and packs its state under the names that the
        class has. Otherwise the files are packed as they are: model.safetensors, diffusion_pytorch_model.safetensors,
        pytorch_model.bin, sharded or not, the first of them that is there.
    overwrite: replace a FlashPack file that exists. Files of the source are never replaced.
    hub: revision, cache_dir, token and so on.
    """
    ignored = Ignored(ignore_names, ignore_prefixes, ignore_suffixes)
    if library not in (None, "diffusers", "transformers"):
        raise ArgumentError(f'library is "transformers" or "diffusers", not {library!r}')
    if destination is None and not os.path.isdir(source):
        raise ArgumentError(f"{os.fspath(source)}: no such directory, and a repository needs a destination")
    folder = fetch(source, _wanted(variant), subfolder, hub)
    checkpoint = find_checkpoint(folder, variant)
    target, is_in_folder = _target(source, folder, destination, variant)
    _check_target(folder, target, overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    dtype = parsed_dtype(dtype)
    if library is not None and is_in_folder:
        model = _load_by_class(folder, checkpoint, variant, library)
        _writer(library)(
            model,
            target.parent,
            variant,
            {"target_dtype": dtype, "silent": silent, "align_large": align_large, **_ignore(ignored)},
        )
        return str(target)
    options: dict[str, Any] = {
        "silent": silent,
        "overwrite": overwrite,
        "progress": progress,
        "align_large": align_large,
    }
    if library is not None:
        state = _load_by_class(folder, checkpoint, variant, library).state_dict()
        state_dict_to_flashpack(state, str(target), dtype, ignored, **options)
    else:
        _convert_files(checkpoint, str(target), dtype, ignored, options)
    if is_in_folder:
        _copy_configuration(folder, target.parent)
    return str(target)


def _ignore(ignored: Ignored) -> dict[str, list[str] | None]:
    return {f"ignore_{what}": names for what, names in ignored._asdict().items()}


def _wanted(variant: str | None) -> list[str]:
    """What to download: configurations, and weights of the variant."""
    between = f".{variant}" if variant else ""
    weights = [f"{stem}{between}{part}.{suffix}" for stem in _STEMS for suffix in _SUFFIXES for part in ("", "-*")]
    return ["*.json", *weights]


def _target(
    source: str | os.PathLike[str], folder: Path, destination: str | os.PathLike[str] | None, variant: str | None
) -> tuple[Path, bool]:
    """The file to write, and whether it is to be found as a model in its folder, by the configuration beside it."""
    if destination is None or _is_same_folder(source, destination):
        return folder / weights_name(variant), True
    path = Path(destination)
    if path.suffix == ".flashpack" and not path.is_dir():
        return path, False
    return path / weights_name(variant), True


def _is_same_folder(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    return os.path.isdir(one) and os.path.isdir(other) and os.path.samefile(one, other)


def _check_target(folder: Path, target: Path, overwrite: bool) -> None:
    """Refuses a file that the model is made of, under any name, and any that exists unless it may be replaced."""
    for path in folder.iterdir():
        if path.suffix != ".flashpack" and target.exists() and path.exists() and path.samefile(target):
            raise ArgumentError(f"{target}: belongs to the source; name another destination")
    check_target(None, str(target), overwrite)


def find_checkpoint(folder: Path, variant: str | None) -> Path:
    """The file of a model's weights, or the index of its shards."""
    names = [name for stem in _STEMS for suffix in _SUFFIXES for name in _names(stem, suffix, variant)]
    # Every safetensors file is preferred to any pickle.
    for name in sorted(names, key=lambda name: ".bin" in name):
        if (folder / name).is_file():
            return folder / name
    of_variant = f" of the variant {variant}" if variant else ""
    raise NotFoundError(f"{folder}: has no weights{of_variant}: none of {', '.join(names)}")


def _names(stem: str, suffix: str, variant: str | None) -> list[str]:
    if variant is None:
        return [f"{stem}.{suffix}", f"{stem}.{suffix}.index.json"]
    return [f"{stem}.{variant}.{suffix}", f"{stem}.{suffix}.index.{variant}.json"]


def _convert_files(
    checkpoint: Path, target: str, dtype: torch.dtype | str | None, ignored: Ignored, options: dict[str, Any]
) -> None:
    if checkpoint.suffix == ".json" and ".bin.index" in checkpoint.name:
        state_dict_to_flashpack(_load_torch_shards(checkpoint), target, dtype, ignored, **options)
    else:
        file_to_flashpack(str(checkpoint), target, dtype, ignored, **options)


def _load_torch_shards(index: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint that torch.save wrote in several files. torch's restricted unpickler runs no code."""
    import torch

    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, Mapping):
        raise FormatError(f"{index}: has no weight_map")
    tensors: dict[str, torch.Tensor] = {}
    for name in sorted(set(weight_map.values())):
        if not isinstance(name, str) or Path(name).name != name:
            raise FormatError(f"{index}: {name!r} is not a file beside it")
        if not (index.parent / name).is_file():
            raise NotFoundError(f"{index.parent / name}: no such file")
        tensors.update(torch.load(index.parent / name, map_location="cpu", weights_only=True))
    missing = sorted(weight_map.keys() - tensors.keys())
    if missing:
        raise FormatError(f"{index}: {missing[0]} is not in {weight_map[missing[0]]}")
    return tensors


def _load_by_class(folder: Path, checkpoint: Path, variant: str | None, library: str) -> Any:
    """The model, loaded from its usual files by its class, in the type that is stored."""
    given: dict[str, Any] = {} if variant is None else {"variant": variant}
    if library == "diffusers":
        auto = public_name("diffusers", "AutoModel")
        return auto.from_pretrained(str(folder), torch_dtype=_stored_dtype(checkpoint), **given)
    auto = public_name("transformers", "AutoModel")
    architectures = read_json(folder / CONFIG_NAME).get("architectures") or [""]
    cls: Any = find_class(import_module("transformers"), architectures[0]) or auto
    return cls.from_pretrained(str(folder), dtype="auto", **given)


def _stored_dtype(checkpoint: Path) -> torch.dtype | None:
    """The floating type that most of a checkpoint has; diffusers does not look. None for what torch.save wrote."""
    if ".bin" in checkpoint.name:
        return None
    from ..._torch import DTYPES

    sizes = {DTYPES[name]: nbytes for name, nbytes in inspect(checkpoint).dtypes.items() if name in DTYPES}
    floating = {dtype: nbytes for dtype, nbytes in sizes.items() if dtype.is_floating_point}
    return max(floating, key=floating.__getitem__) if floating else None


def _writer(library: str) -> Any:
    return import_module(f"{__package__}.{library}.model").write_model


def _copy_configuration(folder: Path, target: Path) -> None:
    for name in _CONFIGURATIONS:
        path = folder / name
        if path.is_file() and not (target / name).exists():
            shutil.copyfile(path, target / name)
