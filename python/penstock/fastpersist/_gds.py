"""GPUDirect Storage, which there is none of."""

from __future__ import annotations

from typing import NoReturn

from ..errors import UnsupportedError


def refuse_gds() -> NoReturn:
    raise UnsupportedError("GPUDirect Storage is not available here: use get_aio_handle() and a buffer on the CPU")
