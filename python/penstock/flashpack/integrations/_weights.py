"""What the models of both libraries have in common: how their weights are saved, and how they come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...errors import UnsupportedError
from ..deserialization import get_flashpack_file_metadata
from ..mixin import FlashPackMixin
from ..serialization import pack_to_file
from ..utils import filter_state_dict, string_to_dtype
from ._arguments import checked_dtype
from ._files import weights_name

if TYPE_CHECKING:
    from torch.nn import Module

_DEFAULT_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_IGNORE = ("ignore_names", "ignore_prefixes", "ignore_suffixes")


def save_weights(model: Module, folder: Path, variant: str | None, arguments: dict[str, Any]) -> None:
    """Saves a model's state. arguments: target_dtype, align_bytes and so on, and names to leave out."""
    if getattr(model, "hf_quantizer", None) is not None:
        raise UnsupportedError(
            f"the {type(model).__name__} is quantised, and could not be loaded from a FlashPack file"
        )
    ignore = {name: arguments[name] for name in _IGNORE if name in arguments}
    pack = {name: value for name, value in arguments.items() if name not in _IGNORE}
    pack_to_file(filter_state_dict(model.state_dict(), **ignore), folder / weights_name(variant), **pack)


def load_weights(
    cls: type, create: Callable[[], Any], path: Path, device: torch.device, dtype: Any, arguments: dict[str, Any]
) -> Any:
    """Creates a model whose parameters take no memory, and gives it those of a file.

    dtype: what floating parameters and buffers become; by default they stay as stored.
    """
    dtype = checked_dtype(dtype)
    given = {"silent": True, **arguments}
    if dtype is not None:
        given["coerce_dtype"] = True  # for the buffers
    loader: Any = cls if issubclass(cls, FlashPackMixin) else FlashPackMixin
    made_in = stored_dtype(path) if dtype is None else dtype
    model = loader.from_flashpack(str(path), device=device, init_fn=partial(_create, create, made_in), **given)
    if dtype is not None:
        _cast_parameters(model, dtype)
    _move_buffers(model, device)
    return model


def _create(create: Callable[[], Any], made_in: torch.dtype | None) -> Any:
    with default_dtype(made_in):
        return create()


def _cast_parameters(model: Module, dtype: torch.dtype) -> None:
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)


def _move_buffers(model: Module, device: torch.device) -> None:
    """Buffers that are in no file were computed on the CPU."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.device != device and not buffer.is_meta:
                setattr(module, name, buffer.to(device))


@contextmanager
def default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Within, tensors are made in this type: computed buffers are then as the libraries' loaders make them."""
    if dtype not in _DEFAULT_DTYPES:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def stored_dtype(path: Path) -> torch.dtype | None:
    """The floating type that most of a file's elements have."""
    metadata = get_flashpack_file_metadata(str(path))
    if "macroblocks" not in metadata:
        counts = {metadata["target_dtype"]: 1}
    else:
        counts = {block["dtype"]: block["length_elems"] for block in metadata["macroblocks"]}
    floating = {name: count for name, count in counts.items() if string_to_dtype(name).is_floating_point}
    return string_to_dtype(max(floating, key=floating.__getitem__)) if floating else None
