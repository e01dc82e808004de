"""Pipelines of diffusers: save_pretrained_flashpack and from_pretrained_flashpack."""

from __future__ import annotations

import glob
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import ArgumentError
from .._arguments import choose_device, of_component, sort_arguments, take_dtype
from .._classes import find_class, plain_class, with_mixin
from .._files import CONFIG_NAME, INDEX_NAME, change_json, make_folder, read_json, weights_name, written_files
from .._hub import fetch, upload
from .._libraries import public_name
from .._saving import sort_for_saving
from ._components import (
    annotated_class,
    check_saveable,
    component_class,
    index_entry,
    loader_of,
    save_component,
    uncompiled,
)

if TYPE_CHECKING:
    import torch

    _DiffusionPipeline = object
else:
    _DiffusionPipeline = public_name("diffusers", "DiffusionPipeline")

# What models without a FlashPack file, and pipelines that bring their own code, need to know.
_FOR_OTHERS = ("dtype", "torch_dtype", "trust_remote_code")
_OTHER_WEIGHTS = [
    "*.safetensors",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.h5",
    "*.msgpack",
    "*.onnx",
    "*.onnx_data",
    "*.pb",
]


def save_pipeline(
    pipeline: Any,
    /,
    save_directory: str | os.PathLike[str],
    *,
    variant: str | None = None,
    is_main_process: bool = True,
    push_to_hub: bool = False,
    target_dtype: torch.dtype | dict[str, torch.dtype] | None = None,
    **arguments: Any,
) -> None:
    """Saves every component in a folder of its own, models as model.flashpack, and uploads them all if asked to.

    target_dtype: for all models, or a dict of one per component ("default" stands for those not named).
    arguments: as those of a model's save_pretrained_flashpack.
    """
    pack, hub = sort_for_saving(arguments)
    components = {name: uncompiled(part) for name, part in pipeline.components.items() if part is not None}
    _check_components(components, target_dtype)
    if not is_main_process:
        return
    folder = make_folder(save_directory)
    with written_files(folder) as written:
        for name, component in components.items():
            dtype = of_component(target_dtype, name)
            save_component(name, component, folder / name, variant, {**pack, "target_dtype": dtype})
        pipeline.save_config(folder)
        change_json(folder / INDEX_NAME, _plain_names(pipeline, read_json(folder / INDEX_NAME)))
    if push_to_hub:
        upload(folder, written, library="diffusers", **hub)


def _check_components(components: dict[str, Any], target_dtype: Any) -> None:
    unknown = sorted(target_dtype.keys() - components.keys() - {"default"}) if isinstance(target_dtype, dict) else []
    if unknown:
        raise ArgumentError(f"target_dtype names {unknown[0]!r}, but the components are {', '.join(components)}")
    for name, component in components.items():
        check_saveable(name, component)


def _plain_names(pipeline: Any, index: dict[str, Any]) -> dict[str, Any]:
    """The entries of the index, by the names of classes that diffusers knows."""
    entries = {name: index_entry(part, index[name]) for name, part in pipeline.components.items() if name in index}
    cls = plain_class(type(pipeline), FlashPackDiffusionPipeline, (_DiffusionPipeline,))
    return {**entries, "_class_name": cls.__name__}


def load_pipeline(
    cls: Any,
    /,
    pretrained_model_name_or_path: str | os.PathLike[str],
    device: str | torch.device | None = None,
    *,
    variant: str | None = None,
    device_map: Any = None,
    **arguments: Any,
) -> Any:
    """Loads a pipeline, its models from FlashPack files where they have one, the rest as from_pretrained does.

    dtype (or torch_dtype): for all models, or a dict of one per component; by default they stay as stored.
    arguments: for the hub revision, cache_dir, token, local_files_only and so on; for the files strict, ignore_names
        and what else assign_from_file takes; components, to use in place of the stored ones; all others are
        from_pretrained's.
    """
    others = {name: arguments[name] for name in _FOR_OTHERS if arguments.get(name) not in (None, "auto")}
    dtype = take_dtype(arguments)
    hub, assign, rest = sort_arguments(arguments)
    one_device = choose_device(device, device_map)
    folder = _fetch(pretrained_model_name_or_path, variant, hub)
    index = read_json(folder / INDEX_NAME)
    cls = _pipeline_class(cls, index)
    stored = _model_entries(folder, index, variant)
    models = {
        name: _load_component(cls, name, stored[name], folder, variant, one_device, of_component(dtype, name), assign)
        for name in sorted(stored.keys() - rest.keys())  # the same order on every rank
    }
    if variant is not None and _others_have(folder, variant):
        others["variant"] = variant
    with _plain_view(folder, index) as view:
        pipeline = cls.from_pretrained(view, **models, **others, **rest)
    pipeline.register_to_config(_name_or_path=os.fspath(pretrained_model_name_or_path))
    return pipeline.to(one_device) if one_device.type != "cpu" else pipeline


def _load_component(
    pipeline_class: Any,
    name: str,
    entry: tuple[str, str],
    folder: Path,
    variant: str | None,
    device: torch.device,
    dtype: Any,
    assign: dict[str, Any],
) -> Any:
    """A model, of the class that the pipeline asks for or that the index names."""
    cls = annotated_class(pipeline_class, name) or component_class(*entry)
    load = loader_of(cls)
    if load is None:
        raise ArgumentError(f"the component {name} is a {cls.__name__}, which is no model of diffusers or transformers")
    return load(cls, folder / name, device, variant=variant, dtype=dtype, **assign)


def _fetch(source: str | os.PathLike[str], variant: str | None, hub: dict[str, Any]) -> Path:
    """The local directory. Weights in other formats are downloaded only of models that have no FlashPack file."""
    folder = fetch(source, ("*",), None, hub, ignore=_OTHER_WEIGHTS)
    if os.path.isdir(source):
        return folder
    others = [
        f"{name}/*"
        for name, entry in read_json(folder / INDEX_NAME).items()
        if _is_entry(entry)
        and (folder / name / CONFIG_NAME).is_file()
        and not (folder / name / weights_name(variant)).is_file()
    ]
    return fetch(source, others, None, hub) if others else folder


def _pipeline_class(cls: Any, index: dict[str, Any]) -> Any:
    """The class to load: the one asked for, or for ours as such the one that the index names."""
    if cls is not FlashPackDiffusionPipeline:
        return cls
    name = index.get("_class_name")
    found = find_class(import_module("diffusers"), name) if isinstance(name, str) else None
    if found is None or not issubclass(found, _DiffusionPipeline):
        raise ArgumentError(f"diffusers has no pipeline {name!r}; use your own class's from_pretrained_flashpack")
    return with_mixin(found, FlashPackDiffusionPipeline)


def _model_entries(folder: Path, index: dict[str, Any], variant: str | None) -> dict[str, tuple[str, str]]:
    """The components that have a FlashPack file: the library and class of each."""
    return {
        name: (entry[0], entry[1])
        for name, entry in index.items()
        if _is_entry(entry) and (folder / name / weights_name(variant)).is_file()
    }


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and all(isinstance(part, str) for part in entry)


def _others_have(folder: Path, variant: str) -> bool:
    """Whether there are files of this variant that are not FlashPack's: from_pretrained wants some."""
    return any(path.suffix != ".flashpack" for path in folder.glob(f"*/*.{glob.escape(variant)}[.-]*"))


@contextmanager
def _plain_view(folder: Path, index: dict[str, Any]) -> Iterator[Path]:
    """The folder, or a view of it that names plain classes where its index names those with FlashPack's methods."""
    plain = {name: _plain_entry(entry) for name, entry in index.items()}
    if plain == index:
        yield folder
        return
    with tempfile.TemporaryDirectory() as temporary:
        view = Path(temporary)
        for child in folder.resolve().iterdir():
            if child.name != INDEX_NAME:
                (view / child.name).symlink_to(child)
        (view / INDEX_NAME).write_text(json.dumps(plain), encoding="utf-8")
        yield view


def _plain_entry(entry: Any) -> Any:
    if not _is_entry(entry) or not entry[1].startswith("FlashPack"):
        return entry
    found = component_class(*entry)
    return [found.__module__.split(".")[0], found.__name__]


class FlashPackDiffusionPipeline(_DiffusionPipeline):
    """For pipelines of diffusers: ``class FlashPackDDPM(DDPMPipeline, FlashPackDiffusionPipeline): ...``

    Its own from_pretrained_flashpack loads whatever pipeline was saved.
    """

    save_pretrained_flashpack = save_pipeline
    from_pretrained_flashpack = classmethod(load_pipeline)


# The spelling of flashpack's README.
FlashPackDiffusionPipine = FlashPackDiffusionPipeline
