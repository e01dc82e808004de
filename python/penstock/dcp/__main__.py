"""python -m penstock.dcp: conversions between directories of torch.distributed.checkpoint and files."""

from __future__ import annotations

import argparse
import sys

from ..errors import Error
from ._convert import convert

_MOST_NAMES = 5


def main(arguments: list[str] | None = None) -> int:
    """Exits with 0, or 1 and one line that says what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m penstock.dcp", description=__doc__)
    command = parser.add_subparsers(required=True).add_parser("convert", help=convert.__doc__)
    command.add_argument("source", help="a directory that was saved by StorageWriter or by torch, or a file")
    command.add_argument("target", help="model.safetensors, model.pt ...: a file; anything else: a directory")
    command.add_argument("--overwrite", action="store_true", help="replace the target")
    given = parser.parse_args(arguments)
    try:
        done = convert(given.source, given.target, overwrite=given.overwrite)
    except Error as problem:
        print(f"penstock.dcp: {problem}", file=sys.stderr)
        return 1
    print(f"{given.target}: {done.tensors} tensors, {done.bytes} bytes")
    if done.left_out:
        more = ", ..." if len(done.left_out) > _MOST_NAMES else ""
        print(f"left out, as no tensors: {', '.join(done.left_out[:_MOST_NAMES])}{more}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
