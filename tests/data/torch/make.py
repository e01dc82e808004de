"""Makes the golden files of torch's formats, with torch 2.13 itself: python tests/data/torch/make.py"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
    torch.complex32,
]


def pattern(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Bytes that count up."""
    count = int(np.prod(shape, dtype=np.int64))
    data = torch.arange(count * dtype.itemsize, dtype=torch.int64).remainder(2 if dtype == torch.bool else 127)
    return data.to(torch.uint8).view(dtype).reshape(shape).clone()


def every_dtype() -> dict[str, torch.Tensor]:
    """One tensor of each, on storages of their own."""
    return {str(dtype).removeprefix("torch."): pattern(dtype, 2, 3) for dtype in DTYPES}


def shapes() -> dict[str, torch.Tensor]:
    """From no dimension to five, empty ones, and numbers that take one, two and four bytes in the pickle."""
    sizes = [(), (1,), (0,), (3, 0, 2), (300,), (2, 2, 2, 2, 1), (1, 70000)]
    return {"x".join(map(str, size)) or "scalar": pattern(torch.uint8, *size) for size in sizes}


def many() -> dict[str, torch.Tensor]:
    """More than a pickle's batch of a thousand, and memo entries of one and of four bytes."""
    return {f"layers.{i}.weight": torch.full((), i, dtype=torch.int16) for i in range(1001)}


def tree() -> dict[str, Any]:
    """What checkpoints of training runs look like: nested, tied, strided, with all that is not a tensor."""
    base = torch.arange(24, dtype=torch.float32)
    grid = base.reshape(4, 6)
    weight = torch.nn.Parameter(torch.tensor([1.5, -2.0]))
    return {
        "model": OrderedDict([("layer.0.weight", weight), ("tied", base), ("tied.too", base)]),
        "views": {
            "transposed": grid.t(),
            "columns": grid[:, 1:3],
            "offset": base[5:9],
            "expanded": base[7:8].expand(3, 2),
            "overlapping": base.as_strided((4, 3), (2, 1)),
            "empty": base[4:4],
        },
        "optimizer": {
            "state": {0: {"step": torch.tensor(7.0)}, 3: {"step": torch.tensor(8.0)}},
            "groups": [{"lr": 1e-3}],
        },
        "epoch": 12,
        "big": 1 << 80,
        "negative": -5,
        "pi": 3.25,
        "name": "n\u00e4me",
        "raw": b"\x00\xff",
        "none": None,
        "flags": (True, False),
        "complex": 1.0 - 2.0j,
        "set": {1, 2},
        "size": torch.Size([2, 3]),
        "device": torch.device("cpu"),
        "dtype": torch.bfloat16,
        "scalar": np.float64(0.5),
    }


def make_above_4_gib() -> None:
    """The ends of a hollow file of 5 GiB: what lies before the large storage, and from its end on."""
    path = HERE / "above_4_gib.pt"
    huge = 5 << 30
    with torch.serialization.skip_data():
        torch.save(
            {"huge": torch.empty(huge, dtype=torch.uint8), "small": torch.zeros(3), "none": torch.zeros(0)}, path
        )
    with path.open("rb") as file:
        head = file.read(64 << 10)
        name = head.index(b"above_4_gib/data/0")
        begin = name + len("above_4_gib/data/0") + int.from_bytes(head[name - 2 : name], "little")
        (HERE / "above_4_gib.head").write_bytes(head[:begin])
        file.seek(begin + huge)
        (HERE / "above_4_gib.tail").write_bytes(file.read())
    path.unlink()


def main() -> None:
    for old in HERE.glob("*.pt"):
        old.unlink()
    for make in (every_dtype, shapes, many):
        torch.save(make(), HERE / f"{make.__name__}.pt")
    torch.save(every_dtype(), HERE / "every_dtype.legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(tree(), HERE / "tree.pt")
    torch.save(tree(), HERE / "tree.legacy.pt", _use_new_zipfile_serialization=False)
    for protocol in (3, 4, 5):
        torch.save(tree(), HERE / f"tree_protocol_{protocol}.pt", pickle_protocol=protocol)
    torch.save(tree(), HERE / "tree_protocol_4.legacy.pt", pickle_protocol=4, _use_new_zipfile_serialization=False)
    torch.serialization.set_crc32_options(False)
    torch.save(every_dtype(), HERE / "no_crc.pt")
    make_above_4_gib()
    torch.serialization.set_crc32_options(True)
    with torch.utils.serialization.config.patch("save.storage_alignment", 4096):
        torch.save({"a": pattern(torch.float32, 3), "b": pattern(torch.uint8, 5)}, HERE / "align_4096.pt")
    torch.jit.save(torch.jit.script(torch.nn.Identity()), HERE / "script.pt")


if __name__ == "__main__":
    main()
