"""Modules without memory for their parameters."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

_TWIN = "_penstock_meta_twin"


@contextmanager
def empty_parameters() -> Iterator[None]:
    """Parameters that modules are given meanwhile, by this thread, go to the meta device. Buffers are left as they are.

    A parameter that is given to several modules stays one.
    """
    thread = threading.get_ident()

    def to_meta(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> torch.nn.Parameter | None:
        if threading.get_ident() != thread or type(parameter) is not torch.nn.Parameter or parameter.is_meta:
            return None  # Other classes of parameters have their own ways of being made.
        twin = getattr(parameter, _TWIN, None)
        if twin is None:
            twin = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
            setattr(parameter, _TWIN, twin)
        return twin

    # torch's annotation forgets that the hook may return another parameter.
    hook = register_module_parameter_registration_hook(to_meta)  # type: ignore[arg-type]
    try:
        yield
    finally:
        hook.remove()
