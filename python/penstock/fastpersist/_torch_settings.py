"""What can be set in torch.serialization and torch.utils.serialization, as far as the installed torch has it."""

from __future__ import annotations

from typing import Any

import torch

_ALIGNMENT = 64


def storage_alignment() -> int:
    """Of the records of a zip."""
    return int(getattr(_config("save"), "storage_alignment", _ALIGNMENT))


def map_by_default() -> bool:
    """Whether files are mapped when a load does not say."""
    return bool(getattr(_config("load"), "mmap", False))


def writes_checksums() -> bool:
    """Whether zips get the CRC-32 of each record."""
    get = getattr(torch.serialization, "get_crc32_options", None)
    return True if get is None else bool(get())


def skips_data() -> bool:
    """Whether this is within torch.serialization.skip_data."""
    return bool(getattr(getattr(torch.serialization, "_serialization_tls", None), "skip_data", False))


def fakes_tensors() -> bool:
    """Whether tensors that are made now are fake."""
    detect = getattr(torch._guards, "detect_fake_mode", None)
    return detect is not None and detect(None) is not None


def maps_shared() -> bool:
    """Whether maps are to write to their file."""
    import mmap

    get = getattr(torch.serialization, "get_default_mmap_options", None)
    return get is not None and bool(get() == mmap.MAP_SHARED)


def reads_big_endian() -> bool:
    """Whether files that don't say are taken to be big-endian."""
    return torch.serialization.get_default_load_endianness() == torch.serialization.LoadEndianness.BIG


def _config(part: str) -> Any:
    try:
        from torch.utils.serialization import config
    except ImportError:  # torch before 2.6
        return None
    return getattr(config, part)
