"""The command: python -m penstock.flashpack, installed as penstock-flashpack."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

_PROGRAM = "penstock-flashpack"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns 0, 1 for an error, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has seen enough
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # whatever torch and the model libraries raise: one line of it
        print(f"{_PROGRAM}: {_one_line(error)}", file=sys.stderr)
        if getattr(options, "verbose", False):
            traceback.print_exc()
        return 1
    return 0


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _parser() -> argparse.ArgumentParser:
    from .. import __version__

    parser = argparse.ArgumentParser(
        _PROGRAM, description="Converts to and from FlashPack files, and shows what they hold."
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_convert(commands)
    _add_revert(commands)
    _add_metadata(commands)
    return parser


def _add_convert(commands: Any) -> None:
    about = "Convert weights to FlashPack."
    parser = commands.add_parser("convert", help=about, description=about)
    parser.add_argument(
        "path_or_repo_id", help="a safetensors file, a torch checkpoint, a folder, or a repository of the hub"
    )
    parser.add_argument("destination_path", nargs="?", help="by default beside the source, with the suffix .flashpack")
    parser.add_argument("--subfolder", help="folder within a repository or folder")
    parser.add_argument("--variant", help="variant of the weights, such as fp16")
    parser.add_argument("--dtype", help="convert every tensor to this, such as bfloat16")
    for what in ("names", "prefixes", "suffixes"):
        parser.add_argument(
            f"--ignore-{what}", action="append", metavar="TEXT", help=f"leave out tensors by their {what}; repeatable"
        )
    parser.add_argument(
        "--align-large", action="store_true", help="begin tensors of 256 KiB and more at multiples of 4096 bytes"
    )
    library = parser.add_mutually_exclusive_group()
    library.add_argument("--use-transformers", action="store_true", help="load the model with transformers")
    library.add_argument("--use-diffusers", action="store_true", help="load the model with diffusers")
    _add_writing(parser, _convert)


def _add_revert(commands: Any) -> None:
    about = "Convert a FlashPack file back to safetensors, or to a torch checkpoint."
    parser = commands.add_parser("revert", help=about, description=about)
    parser.add_argument("path", help="a FlashPack file")
    parser.add_argument(
        "destination_path",
        nargs="?",
        help="its suffix (.safetensors, .pt, .pth, .bin, .ckpt) says what to write; by default beside the source, with the "
        "suffix .safetensors",
    )
    _add_writing(parser, _revert)


def _add_writing(parser: Any, run: Any) -> None:
    parser.add_argument("--force", action="store_true", help="replace the destination if it exists")
    parser.add_argument("-v", "--verbose", action="store_true", help="print how long each phase took")
    parser.set_defaults(run=run)


def _add_metadata(commands: Any) -> None:
    about = "Show the metadata of a FlashPack file."
    parser = commands.add_parser("metadata", help=about, description=about)
    parser.add_argument("path", help="a FlashPack file")
    parser.add_argument("-i", "--show-index", action="store_true", help="show every tensor too")
    parser.add_argument("-j", "--json", action="store_true", help="as JSON")
    parser.set_defaults(run=_metadata)


def _convert(options: argparse.Namespace) -> None:
    from .commands import convert_to_flashpack

    made = convert_to_flashpack(
        options.path_or_repo_id,
        options.destination_path,
        dtype=options.dtype,
        ignore_names=options.ignore_names,
        ignore_prefixes=options.ignore_prefixes,
        ignore_suffixes=options.ignore_suffixes,
        use_transformers=options.use_transformers,
        use_diffusers=options.use_diffusers,
        silent=not options.verbose,
        overwrite=options.force,
        align_large=options.align_large,
        progress=sys.stderr.isatty(),
        subfolder=options.subfolder,
        variant=options.variant,
    )
    print(f"saved to {os.path.abspath(made)}")


def _revert(options: argparse.Namespace) -> None:
    from .commands import revert_from_flashpack

    made = revert_from_flashpack(
        options.path,
        options.destination_path,
        silent=not options.verbose,
        overwrite=options.force,
        progress=sys.stderr.isatty(),
    )
    print(f"saved to {os.path.abspath(made)}")


def _metadata(options: argparse.Namespace) -> None:
    from .deserialization import get_flashpack_file_metadata

    metadata = get_flashpack_file_metadata(options.path)
    index = metadata["index"] if options.show_index else None
    if options.json:
        shown = {key: value for key, value in metadata.items() if key != "index" or options.show_index}
        print(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    blocks = _blocks(metadata)
    for key, value in metadata.items():
        if key not in ("index", "macroblocks"):
            print(f"{key}: {value}")
    print(f"tensors: {len(metadata['index'])}")
    print("macroblocks:")
    for number, (dtype, begin, end) in enumerate(blocks):
        print(f"  {number}: {dtype:<10} bytes {begin} to {end}")
    if index is not None:
        print("index:")
        for record in sorted(index, key=lambda record: (record.get("macroblock", 0), record["offset"])):
            _print_record(record, blocks)


def _blocks(metadata: dict[str, Any]) -> list[tuple[str, int, int]]:
    """The type, the begin and the end of each block; a v3 file has one, and does not say where."""
    if "macroblocks" in metadata:
        found = [(block["dtype"], block["offset_bytes"], block["length_bytes"]) for block in metadata["macroblocks"]]
        return [(dtype, begin, begin + length) for dtype, begin, length in found]
    from .utils import string_to_dtype

    dtype = metadata["target_dtype"]
    return [(dtype, 0, metadata["total_elems"] * string_to_dtype(dtype).itemsize)]


def _print_record(record: dict[str, Any], blocks: list[tuple[str, int, int]]) -> None:
    name = record["name"] if record["name"].isprintable() else json.dumps(record["name"])
    block = record.get("macroblock", 0)
    end = record["offset"] + record["length"]
    print(f"  {block}: {blocks[block][0]:<10} elements {record['offset']} to {end}  {name} {record['shape']}")


if __name__ == "__main__":
    sys.exit(main())
