"""Reading FlashPack files: metadata, whole macroblocks, state dicts, and the weights of a model."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from .. import _core
from .._options import path_text
from ..errors import ArgumentError, Error
from ._assign import Rules, Source, assign
from ._blocks import read_blocks, read_blocks_to
from ._distributed import read_flashpack_file_distributed, resolve_shard_strategy
from ._read import OpenFile, ReadBlocks, open_blocks
from ._storage import FlashTensorStorage, MacroblockSpec, TensorIndexRecord, index_records
from .constants import (
    DEFAULT_CHUNK_BYTES,
    DEFAULT_NUM_STREAMS,
    DEFAULT_SHARD_BYTES,
    DEFAULT_SHARD_STRATEGY,
    FILE_FORMAT_V3,
    FILE_FORMAT_V4,
    MAGIC,
    SHARD_ALIGN_BYTES,
    SHARD_STRATEGIES,
    SHARD_STRATEGY_WINDOWS,
    U64LE,
)
from .parallel_read import parallel_read_into_storage, parallel_read_supported, sharded_read_available
from .utils import is_ignored_tensor_name, maybe_init_distributed, timer

if TYPE_CHECKING:
    from .._options import Path

__all__ = [
    "DEFAULT_CHUNK_BYTES",
    "DEFAULT_NUM_STREAMS",
    "DEFAULT_SHARD_BYTES",
    "DEFAULT_SHARD_STRATEGY",
    "FILE_FORMAT_V3",
    "FILE_FORMAT_V4",
    "MAGIC",
    "SHARD_ALIGN_BYTES",
    "SHARD_STRATEGIES",
    "SHARD_STRATEGY_WINDOWS",
    "U64LE",
    "FlashTensorStorage",
    "MacroblockSpec",
    "assign_from_file",
    "get_flashpack_file_metadata",
    "is_flashpack_file",
    "iterate_from_flash_tensor",
    "parallel_read_into_storage",
    "parallel_read_supported",
    "read_flashpack_file",
    "read_flashpack_file_distributed",
    "resolve_shard_strategy",
    "revert_from_file",
    "sharded_read_available",
]


def get_flashpack_file_metadata(path: Path) -> dict[str, Any]:
    """The footer of a file: format, index, macroblocks. All of it is checked."""
    metadata: dict[str, Any] = json.loads(_core.flashpack_footer(path_text(path)))
    return metadata


def is_flashpack_file(path: Path) -> bool:
    """Whether the path is that of a FlashPack file that can be read."""
    with suppress(Error, TypeError):
        get_flashpack_file_metadata(path)
        return True
    return False


def read_flashpack_file(
    path: Path,
    device: str | torch.device = "cpu",
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    num_streams: int = DEFAULT_NUM_STREAMS,
    silent: bool = True,
    metadata: dict[str, Any] | None = None,
) -> tuple[FlashTensorStorage, dict[str, Any]]:
    """Reads the macroblocks of a file. Returns them and the metadata, which `iterate_from_flash_tensor` takes.

    On the CPU the blocks are writable memory of this process, and each starts at a page.

    metadata: what `get_flashpack_file_metadata` gave, to save its parsing.
    chunk_bytes, num_streams: not needed, the engine chooses.
    """
    with timer("read_metadata", silent):
        if metadata is None:
            footer, core = open_blocks(path)
            metadata = json.loads(footer)
        else:
            core = _core.open_flashpack_blocks(path_text(path))
    with timer("read_payload", silent):
        place = torch.device(device)
        blocks = read_blocks(core) if place.type == "cpu" else read_blocks_to(core, place)
    return FlashTensorStorage(blocks), metadata


def iterate_from_flash_tensor(
    flash_tensor: FlashTensorStorage | torch.Tensor,
    metadata: dict[str, Any],
    ignore_names: list[str] | None = None,
    ignore_prefixes: list[str] | None = None,
    ignore_suffixes: list[str] | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name, view) of every tensor in loaded blocks. The whole index is checked before the first."""
    storage = flash_tensor if isinstance(flash_tensor, FlashTensorStorage) else FlashTensorStorage([flash_tensor])
    records = index_records(metadata)
    for record in records:
        _check_record(record, storage)
    for record in records:
        if not is_ignored_tensor_name(record.name, ignore_names, ignore_prefixes, ignore_suffixes):
            view = storage.block(record.macroblock)[record.offset : record.offset + record.length]
            yield record.name, view.view(record.shape)


def _check_record(record: TensorIndexRecord, storage: FlashTensorStorage) -> None:
    if not 0 <= record.macroblock < len(storage):
        raise ArgumentError(
            f"{record.name}: Index entry references invalid macroblock {record.macroblock}, there are {len(storage)}"
        )
    block = storage.block(record.macroblock)
    problem = f"Could not get tensor for record {record.name}"
    if not 0 <= record.offset <= record.offset + record.length <= block.numel():
        raise ArgumentError(
            f"{problem}: elements {record.offset} to {record.offset + record.length} are not in its macroblock, "
            f"which has {block.numel()}"
        )
    if any(size < 0 for size in record.shape) or math.prod(record.shape) != record.length:
        raise ArgumentError(f"{problem}: shape {record.shape} does not have {record.length} elements")


def revert_from_file(path: Path, silent: bool = True) -> dict[str, torch.Tensor]:
    """The state dict that a file was made from."""
    with timer("read_payload", silent):
        return OpenFile(path, torch.device("cpu")).load(None)


def assign_from_file(
    model: torch.nn.Module,
    path: Path,
    device: str | torch.device | None = None,
    strict: bool | None = None,
    strict_params: bool = True,
    strict_buffers: bool = False,
    keep_flash_ref_on_model: bool = False,
    silent: bool = True,
    num_streams: int = DEFAULT_NUM_STREAMS,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    ignore_names: list[str] | None = None,
    ignore_prefixes: list[str] | None = None,
    ignore_suffixes: list[str] | None = None,
    use_distributed_loading: bool = False,
    distributed_sharded: bool = False,
    distributed_shard_strategy: str | None = None,
    rank: int | None = None,
    local_rank: int | None = None,
    world_size: int | None = None,
    coerce_dtype: bool = False,
) -> None:
    """Replaces the parameters and buffers of a model by those of a file, without copying them again.

    Names, shapes and types are checked before anything is read, and everything is read before anything is assigned: on
    any error the model is as it was. Parameters keep requires_grad, and take the file's type if it is of the same kind.
    What was tied stays tied, and one of its names in the file is enough.

    device: where the tensors go; by default where the model is, or the CPU for a model on the meta device.
    strict_params, strict_buffers: every parameter, every buffer that is saved, must be in the file. While either holds,
        names that the model lacks and shapes or types that differ are errors too. strict sets both. With neither, what
        is missing or unexpected is passed over, and what does not fit is left out with a warning.
    coerce_dtype: convert buffers of another type to the model's, and parameters of another kind. Otherwise they don't
        fit.
    ignore_names, ignore_prefixes, ignore_suffixes: tensors to leave alone; they are not read.
    keep_flash_ref_on_model: keep the loaded blocks as model._flash_shared_storage, and the metadata beside them.
    use_distributed_loading: the ranks read the file together, see `read_flashpack_file_distributed`; rank, local_rank
        and world_size start torch.distributed if it does not run.
    silent: don't print how long each phase took.
    num_streams, chunk_bytes: not needed, the engine chooses.
    """
    place = _device_of(model) if device is None else torch.device(device)
    kept: tuple[FlashTensorStorage, dict[str, Any]] | None = None
    source: Source
    if use_distributed_loading:
        maybe_init_distributed(rank, local_rank, world_size)
        kept = read_flashpack_file_distributed(
            path, place, silent=silent, sharded=distributed_sharded, shard_strategy=distributed_shard_strategy
        )
        source = ReadBlocks(*kept)
    elif keep_flash_ref_on_model:
        kept = read_flashpack_file(path, place, silent=silent)
        source = ReadBlocks(*kept)
    else:
        with timer("read_metadata", silent):
            source = OpenFile(path, place)
    rules = Rules(
        strict_params=strict_params if strict is None else strict,
        strict_buffers=strict_buffers if strict is None else strict,
        coerce_dtype=coerce_dtype,
        is_ignored=partial(
            is_ignored_tensor_name,
            ignore_names=ignore_names,
            ignore_prefixes=ignore_prefixes,
            ignore_suffixes=ignore_suffixes,
        ),
    )
    assign(model, source, os.fsdecode(path), rules, silent)
    if keep_flash_ref_on_model and kept is not None:
        model._flash_shared_storage, model._flash_shared_storage_meta = kept  # type: ignore[assignment]


def _device_of(model: torch.nn.Module) -> torch.device:
    """Where a model is; the CPU when it is nowhere."""
    found = getattr(model, "device", None)
    if not isinstance(found, (str, torch.device)):
        found = next((parameter.device for parameter in model.parameters()), "cpu")
    device = torch.device(found)
    return torch.device("cpu") if device.type == "meta" else device
