"""What the command is: its subcommands, their arguments, and what they do. `_command` and `_click` are made of this."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Parameter(NamedTuple):
    """An argument or, if its names start with dashes, an option. Those of a `group` exclude each other."""

    names: tuple[str, ...]
    help: str
    is_required: bool = True
    is_flag: bool = False
    is_repeatable: bool = False
    group: str | None = None

    @property
    def is_option(self) -> bool:
        return self.names[0].startswith("-")

    @property
    def keyword(self) -> str:
        """The keyword that `Command.run` has for it."""
        return self.names[-1].lstrip("-").replace("-", "_")


class Command(NamedTuple):
    """A subcommand. `run` takes a keyword for each parameter; it returns the path of what was made, or prints."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    run: Callable[..., str | None]

    def groups(self) -> list[str]:
        """The groups of its parameters."""
        return list(dict.fromkeys(parameter.group for parameter in self.parameters if parameter.group is not None))


def one_line(error: Exception) -> str:
    """What to print of an error."""
    return " ".join(str(error).split()) or type(error).__name__


def _convert(
    *,
    path_or_repo_id: str,
    destination_path: str | None,
    subfolder: str | None,
    variant: str | None,
    dtype: str | None,
    ignore_names: Sequence[str] | None,
    ignore_prefixes: Sequence[str] | None,
    ignore_suffixes: Sequence[str] | None,
    align_large: bool,
    use_transformers: bool,
    use_diffusers: bool,
    force: bool,
    verbose: bool,
) -> str:
    from .commands import convert_to_flashpack

    return convert_to_flashpack(
        path_or_repo_id,
        destination_path,
        dtype=dtype,
        ignore_names=list(ignore_names or ()),
        ignore_prefixes=list(ignore_prefixes or ()),
        ignore_suffixes=list(ignore_suffixes or ()),
        use_transformers=use_transformers,
        use_diffusers=use_diffusers,
        silent=not verbose,
        overwrite=force,
        align_large=align_large,
        progress=sys.stderr.isatty(),
        subfolder=subfolder,
        variant=variant,
    )


def _revert(*, path: str, destination_path: str | None, force: bool, verbose: bool) -> str:
    from .commands import revert_from_flashpack

    return revert_from_flashpack(
        path, destination_path, silent=not verbose, overwrite=force, progress=sys.stderr.isatty()
    )


def _metadata(*, path: str, show_index: bool, json: bool) -> None:
    from .deserialization import get_flashpack_file_metadata

    metadata = get_flashpack_file_metadata(path)
    if json:
        _print_json({key: value for key, value in metadata.items() if key != "index" or show_index})
        return
    blocks = _blocks(metadata)
    for key, value in metadata.items():
        if key not in ("index", "macroblocks"):
            print(f"{key}: {value}")
    print(f"tensors: {len(metadata['index'])}")
    print("macroblocks:")
    for number, (dtype, begin, end) in enumerate(blocks):
        print(f"  {number}: {dtype:<10} bytes {begin} to {end}")
    if show_index:
        print("index:")
        for record in sorted(metadata["index"], key=lambda record: (record.get("macroblock", 0), record["offset"])):
            _print_record(record, blocks)


def _print_json(metadata: dict[str, Any]) -> None:
    print(json.dumps(metadata, indent=2, ensure_ascii=False))


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


_DESTINATION = "by default beside the source, with the suffix"
_WRITING = (
    Parameter(("--force",), "replace the destination if it exists", is_flag=True),
    Parameter(("-v", "--verbose"), "print how long each phase took", is_flag=True),
)

COMMANDS = (
    Command(
        "convert",
        "Convert weights to FlashPack.",
        (
            Parameter(
                ("path_or_repo_id",), "a safetensors file, a torch checkpoint, a folder, or a repository of the hub"
            ),
            Parameter(("destination_path",), f"{_DESTINATION} .flashpack", is_required=False),
            Parameter(("--subfolder",), "folder within a repository or folder"),
            Parameter(("--variant",), "variant of the weights, such as fp16"),
            Parameter(("--dtype",), "convert every tensor to this, such as bfloat16"),
            *(
                Parameter((f"--ignore-{what}",), f"leave out tensors by their {what}; repeatable", is_repeatable=True)
                for what in ("names", "prefixes", "suffixes")
            ),
            Parameter(("--align-large",), "begin tensors of 256 KiB and more at multiples of 4096 bytes", is_flag=True),
            Parameter(("--use-transformers",), "load the model with transformers", is_flag=True, group="library"),
            Parameter(("--use-diffusers",), "load the model with diffusers", is_flag=True, group="library"),
            *_WRITING,
        ),
        _convert,
    ),
    Command(
        "revert",
        "Convert a FlashPack file back to safetensors, or to a torch checkpoint.",
        (
            Parameter(("path",), "a FlashPack file"),
            Parameter(
                ("destination_path",),
                f"its suffix (.safetensors, .pt, .pth, .bin, .ckpt) says what to write; {_DESTINATION} .safetensors",
                is_required=False,
            ),
            *_WRITING,
        ),
        _revert,
    ),
    Command(
        "metadata",
        "Show the metadata of a FlashPack file.",
        (
            Parameter(("path",), "a FlashPack file"),
            Parameter(("-i", "--show-index"), "show every tensor too", is_flag=True),
            Parameter(("-j", "--json"), "as JSON", is_flag=True),
        ),
        _metadata,
    ),
)
