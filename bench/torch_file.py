"""The raced files as torch.save writes them, zip and legacy, and what such a file holds according to torch.load.

Run as a program it prints the checksum of a file's tensors, so that the driver, which has no torch, can ask for it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any


def make_zip_input(source: str, target: str) -> None:
    """TARGET from the safetensors file SOURCE."""
    _make_input(source, target, zipped=True)


def make_legacy_input(source: str, target: str) -> None:
    _make_input(source, target, zipped=False)


def _make_input(source: str, target: str, zipped: bool) -> None:
    import torch

    from tensors import read_into_memory

    temporary = Path(target + ".part")
    torch.save(read_into_memory(source), temporary, _use_new_zipfile_serialization=zipped)
    temporary.replace(target)


def checksum_file(path: Path, python: str) -> int:
    """As model.checksum_file, by the torch.load of the given Python."""
    command = [python, str(Path(__file__).resolve()), str(path)]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    import torch

    from tensors import checksum

    print(checksum(torch.load(sys.argv[1], weights_only=True)))


ZIP_INPUT: dict[str, Any] = {"input_suffix": ".pt", "make_input": make_zip_input}
LEGACY_INPUT: dict[str, Any] = {"input_suffix": ".legacy.pt", "make_input": make_legacy_input}
TORCH_OUTPUT: dict[str, Any] = {"output_suffix": ".pt"}

if __name__ == "__main__":
    main()
