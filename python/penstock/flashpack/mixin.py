"""FlashPackMixin: a module that loads from and saves to FlashPack files."""

from __future__ import annotations

import inspect
import itertools
import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ._assign import listed
from ._empty import empty_parameters
from .constants import DEFAULT_ALIGN_BYTES, DEFAULT_CHUNK_BYTES, DEFAULT_NUM_STREAMS, DEFAULT_NUM_WRITE_WORKERS
from .deserialization import assign_from_file
from .serialization import pack_to_file

if TYPE_CHECKING:
    from typing_extensions import Self

    from .._options import Path

__all__ = ["FlashPackMixin"]


class FlashPackMixin:
    """Gives a torch module `from_flashpack` and `save_flashpack`: ``class Model(nn.Module, FlashPackMixin)``.

    The class variables are defaults: flashpack_init_method names the classmethod that makes an instance, the others are
    what `assign_from_file` calls coerce_dtype, ignore_names, ignore_prefixes and ignore_suffixes.
    """

    flashpack_coerce_dtype: ClassVar[bool] = False
    flashpack_init_method: ClassVar[str | None] = None
    flashpack_ignore_names: ClassVar[list[str] | None] = None
    flashpack_ignore_prefixes: ClassVar[list[str] | None] = None
    flashpack_ignore_suffixes: ClassVar[list[str] | None] = None

    @classmethod
    def from_flashpack(
        cls,
        path: Path,
        *args: Any,
        device: str | torch.device | None = None,
        silent: bool = False,
        strict: bool | None = None,
        strict_params: bool = True,
        strict_buffers: bool = False,
        keep_flash_ref_on_model: bool = False,
        ignore_names: list[str] | None = None,
        ignore_prefixes: list[str] | None = None,
        ignore_suffixes: list[str] | None = None,
        num_streams: int = DEFAULT_NUM_STREAMS,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        use_distributed_loading: bool = False,
        distributed_sharded: bool = False,
        distributed_shard_strategy: str | None = None,
        rank: int | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        coerce_dtype: bool = False,
        init_fn: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """A new instance with the weights of a file, in eval mode. It may be called on the class or on an instance.

        The instance is made by `init_fn`, the method that flashpack_init_method names, or the class, with `args` and
        those of `kwargs` that it takes, and without memory for its parameters. device: the CPU by default. The other
        arguments are those of `assign_from_file`.
        """
        make = init_fn or _init_method(cls)
        ranks = {"rank": rank, "local_rank": local_rank, "world_size": world_size}
        with empty_parameters():
            model: Self = make(*args, **_accepted(make, kwargs, ranks))
        assign_from_file(
            model,  # type: ignore[arg-type] # a module, by the way this class is used
            path,
            device=torch.device("cpu" if device is None else device),
            strict=strict,
            strict_params=strict_params,
            strict_buffers=strict_buffers,
            keep_flash_ref_on_model=keep_flash_ref_on_model,
            silent=silent,
            num_streams=num_streams,
            chunk_bytes=chunk_bytes,
            ignore_names=ignore_names or cls.flashpack_ignore_names,
            ignore_prefixes=ignore_prefixes or cls.flashpack_ignore_prefixes,
            ignore_suffixes=ignore_suffixes or cls.flashpack_ignore_suffixes,
            use_distributed_loading=use_distributed_loading,
            distributed_sharded=distributed_sharded,
            distributed_shard_strategy=distributed_shard_strategy,
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            coerce_dtype=coerce_dtype or cls.flashpack_coerce_dtype,
        )
        if isinstance(model, torch.nn.Module):
            model.eval()
            _warn_of_meta(model, os.fsdecode(path))
        return model

    def save_flashpack(
        self,
        destination_path: Path,
        target_dtype: torch.dtype | None = None,
        name_order: list[str] | None = None,
        align_bytes: int = DEFAULT_ALIGN_BYTES,
        silent: bool = False,
        num_workers: int = DEFAULT_NUM_WRITE_WORKERS,
        *,
        align_large: bool = False,
    ) -> None:
        """Saves the module's state; see `pack_to_file`."""
        pack_to_file(
            self,  # type: ignore[arg-type] # a module, by the way this class is used
            destination_path,
            target_dtype=target_dtype,
            name_order=name_order,
            align_bytes=align_bytes,
            silent=silent,
            num_workers=num_workers,
            align_large=align_large,
        )


def _init_method(cls: type[FlashPackMixin]) -> Callable[..., Any]:
    name = cls.flashpack_init_method
    method: Callable[..., Any] = cls if name is None else getattr(cls, name, cls)
    return method


def _accepted(make: Callable[..., Any], given: dict[str, Any], ranks: dict[str, int | None]) -> dict[str, Any]:
    """The arguments that `make` takes. The ranks only where it asks for them by name."""
    try:
        parameters = inspect.signature(make).parameters
    except ValueError:  # a builtin without a signature
        return given
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    accepted = {name: value for name, value in given.items() if takes_all or name in parameters}
    return {**accepted, **{name: value for name, value in ranks.items() if name in parameters}}


def _warn_of_meta(model: torch.nn.Module, path: str) -> None:
    """What was neither in the file nor made by the module has no memory, and can't be used."""
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    left = [name for name, tensor in tensors if tensor.is_meta]
    if left:
        warnings.warn(
            f"{path}: {len(left)} tensors are not in the file and have no values (they are on the meta device): "
            f"{listed(left)}",
            stacklevel=3,
        )
