"""paddle's tensors, made of torch's by DLPack: the engine loads as for torch, and paddle takes the memory over."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from ..._frameworks import require_torch
from ...errors import LibraryError
from ..st_types import Device, DType
from ._torch import TorchOp, TorchTensor


class PaddleTensor(TorchTensor):
    """A tensor of torch's that is given out as paddle's, over the same memory."""

    def get_raw(self) -> Any:
        """paddle's own tensor."""
        return to_paddle(self.real_tensor)


class PaddleOp(TorchOp):
    """paddle."""

    def get_name(self) -> str:
        """Its name."""
        return "paddle"

    def get_device(self, device: str, pg: Any) -> Device:
        """The device of a name; paddle calls GPUs "gpu:1"."""
        return super().get_device(str(device).replace("gpu", "cuda", 1), pg)

    def wrap_tensor(self, tensor: Any) -> TorchTensor:
        """The wrapper of a tensor of paddle's or torch's, without a copy."""
        import torch
        from torch.utils.dlpack import from_dlpack

        wrapped: TorchTensor = super().wrap_tensor(tensor if isinstance(tensor, torch.Tensor) else from_dlpack(tensor))
        return PaddleTensor(wrapped.device, wrapped.dtype, wrapped.real_tensor)

    def from_dlpack(self, dl_tensor: Any, device: Device, dtype: DType) -> TorchTensor:
        """A tensor of a DLPack capsule, or of another library's tensor."""
        made = super().from_dlpack(dl_tensor, device, dtype)
        return PaddleTensor(device, dtype, made.real_tensor)

    def is_equal(self, wrapped: TorchTensor, real: Any) -> bool:
        """Whether two tensors have the same elements."""
        return super().is_equal(wrapped, self.wrap_tensor(real).real_tensor)


def to_paddle(tensor: Any) -> Any:
    """A tensor of torch's as paddle's, over the same memory."""
    return import_module("paddle.utils.dlpack").from_dlpack(import_module("torch.utils.dlpack").to_dlpack(tensor))


@cache
def get_framework_op() -> PaddleOp:
    """The one of this process; an error that says what to install where paddle is not."""
    try:
        import_module("paddle")
    except ImportError as problem:
        raise LibraryError(
            'framework="paddle" needs paddle, which is not installed: pip install paddlepaddle'
        ) from problem
    require_torch('framework="paddle"')
    return PaddleOp()
