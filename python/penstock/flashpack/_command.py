"""The command penstock-flashpack, by argparse."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from ._definitions import COMMANDS, Command, one_line

_PROGRAM = "penstock-flashpack"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns 0, 1 for an error, 2 for wrong usage."""
    values = vars(_parser().parse_args(arguments))
    command: Command = values.pop("command")
    try:
        made = command.run(**values)
        if made is not None:
            print(f"saved to {os.path.abspath(made)}")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has seen enough
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # whatever torch and the model libraries raise: one line of it
        print(f"{_PROGRAM}: {one_line(error)}", file=sys.stderr)
        if values.get("verbose"):
            traceback.print_exc()
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    from .. import __version__

    parser = argparse.ArgumentParser(
        _PROGRAM, description="Converts to and from FlashPack files, and shows what they hold."
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        _add_command(commands, command)
    return parser


def _add_command(commands: Any, command: Command) -> None:
    parser = commands.add_parser(command.name, help=command.about, description=command.about)
    parser.set_defaults(command=command)
    groups = {group: parser.add_mutually_exclusive_group() for group in command.groups()}
    for parameter in command.parameters:
        settings: dict[str, Any] = {"help": parameter.help}
        if not parameter.is_option:
            settings["nargs"] = None if parameter.is_required else "?"
        elif parameter.is_flag:
            settings["action"] = "store_true"
        elif parameter.is_repeatable:
            settings.update(action="append", metavar="TEXT")
        owner = parser if parameter.group is None else groups[parameter.group]
        owner.add_argument(*parameter.names, **settings)
