"""NVIDIA's headers and libraries, in the pairs that belong together: which ones is said in packages.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from wheels import Collection, Wheel

MANIFEST = Path(__file__).with_name("packages.json")


@dataclass(frozen=True)
class Toolkit:
    """A release of CUDA, as packages of an index ship it."""

    runtime: Wheel
    cufile: Wheel

    def __str__(self) -> str:
        return f"{self.runtime}, {self.cufile}"


@dataclass(frozen=True)
class Files:
    """What is in a toolkit, each with its path here."""

    cuda_h: Path
    cufile_h: Path
    libcudart: Path
    libcufile: Path


def read_manifest() -> dict[str, Toolkit]:
    """The toolkits by the version of CUDA that they are of."""
    entries = json.loads(MANIFEST.read_text())
    wheels = {entry["name"]: Wheel(**{**entry, "paths": tuple(entry["paths"])}) for entry in entries}
    return {
        "12": Toolkit(wheels["nvidia-cuda-runtime-cu12"], wheels["nvidia-cufile-cu12"]),
        "13": Toolkit(wheels["nvidia-cuda-runtime"], wheels["nvidia-cufile"]),
    }


def get(toolkit: Toolkit, collection: Collection) -> Files:
    """Downloads what is not there yet; raises Unavailable where that can't be done."""
    found = [collection.get(wheel) / path for wheel in (toolkit.runtime, toolkit.cufile) for path in wheel.paths]
    cuda_h, libcudart, cufile_h, libcufile = found
    return Files(cuda_h, cufile_h, libcudart, libcufile)
