"""Models of diffusers: save_pretrained_flashpack and from_pretrained_flashpack."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...mixin import FlashPackMixin
from .._arguments import choose_device, sort_arguments, take_dtype
from .._classes import plain_class
from .._files import CONFIG_NAME, change_json, find_weights, make_folder, weights_name, written_files
from .._hub import fetch, upload
from .._libraries import public_name
from .._saving import sort_for_saving
from .._weights import load_weights, save_weights

if TYPE_CHECKING:
    import torch
    from torch.nn import Module as _ModelMixin
else:
    _ModelMixin = public_name("diffusers", "ModelMixin")


def save_model(
    model: Any,
    /,
    save_directory: str | os.PathLike[str],
    *,
    is_main_process: bool = True,
    variant: str | None = None,
    push_to_hub: bool = False,
    **arguments: Any,
) -> None:
    """Saves the model's configuration and its weights as model.flashpack, and uploads them if asked to.

    variant: the weights' file is model.VARIANT.flashpack. is_main_process: where it is False, nothing is written.
    arguments: target_dtype, align_bytes, silent, num_workers and names to leave out, as pack_to_file and its relatives
        take them; for an upload repo_id (else the directory's name), private, token, create_pr, commit_message.
    """
    pack, hub = sort_for_saving(arguments)
    if not is_main_process:
        return
    folder = make_folder(save_directory)
    with written_files(folder) as written:
        write_model(model, folder, variant, pack)
    if push_to_hub:
        upload(folder, written, library="diffusers", **hub)


def write_model(model: Any, folder: Path, variant: str | None, pack: dict[str, Any]) -> None:
    """Writes a model's files."""
    model.save_config(folder)
    name = plain_class(type(model), FlashPackMixin, (_ModelMixin,)).__name__
    change_json(folder / CONFIG_NAME, {"_class_name": name})
    save_weights(model, folder, variant, pack)


def load_model(
    cls: Any,
    /,
    pretrained_model_name_or_path: str | os.PathLike[str],
    device: str | torch.device | None = None,
    *,
    subfolder: str | None = None,
    variant: str | None = None,
    device_map: Any = None,
    **arguments: Any,
) -> Any:
    """Loads a model that was saved as a FlashPack file, from a directory or from the hub, in evaluation mode.

    dtype (or torch_dtype): what floating parameters become; by default they stay as stored.
    arguments: for the hub revision, cache_dir, token, local_files_only and so on; for the file strict, ignore_names and
        what else assign_from_file takes; all others replace entries of the stored configuration.
    """
    dtype = take_dtype(arguments)
    hub, assign, rest = sort_arguments(arguments)
    folder = fetch(pretrained_model_name_or_path, (CONFIG_NAME, weights_name(variant)), subfolder, hub)
    path = find_weights(folder, variant)
    config = cls.load_config(folder)
    model = load_weights(
        cls, lambda: cls.from_config(config, **rest), path, choose_device(device, device_map), dtype, assign
    )
    model.register_to_config(_name_or_path=os.fspath(pretrained_model_name_or_path))
    return model


class FlashPackDiffusersModelMixin(_ModelMixin, FlashPackMixin):
    """For models of diffusers: ``class FlashPackUNet(UNet2DModel, FlashPackDiffusersModelMixin): ...``"""

    flashpack_init_method: ClassVar[str | None] = "from_config"

    save_pretrained_flashpack = save_model
    from_pretrained_flashpack = classmethod(load_model)
