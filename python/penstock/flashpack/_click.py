"""The command as a click group, for code that runs flashpack's own by click, or adds it to a group."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any

from ..errors import LibraryError
from ._definitions import COMMANDS, Command, Parameter, one_line
from .version import __version__

try:
    import click
except ImportError as problem:
    raise LibraryError(
        "penstock.flashpack.__main__.main is a click group, and click is not installed: pip install 'penstock[click]'"
    ) from problem


@cache
def group() -> click.Group:
    """The group "flashpack" with a command for each of ours."""
    made = click.Group(
        "flashpack",
        commands=[_command(command) for command in COMMANDS],
        help="Converts to and from FlashPack files, and shows what they hold.",
    )
    return click.version_option(__version__)(made)


def _command(command: Command) -> click.Command:
    parameters = [_parameter(parameter) for parameter in command.parameters]
    return click.Command(command.name, params=parameters, help=command.about, callback=_callback(command))


def _parameter(parameter: Parameter) -> click.Parameter:
    if not parameter.is_option:
        return click.Argument([parameter.names[0]], required=parameter.is_required)
    return click.Option(
        [*parameter.names], is_flag=parameter.is_flag, multiple=parameter.is_repeatable, help=parameter.help
    )


def _callback(command: Command) -> Callable[..., None]:
    def run(**values: Any) -> None:
        _check_groups(command, values)
        try:
            made = command.run(**values)
        except BrokenPipeError:
            raise  # click ends quietly then
        except Exception as error:
            if values.get("verbose"):
                traceback.print_exc()
            raise click.ClickException(one_line(error)) from error
        if made is not None:
            click.echo(f"Success: Saved to {os.path.abspath(made)}")

    return run


def _check_groups(command: Command, values: dict[str, Any]) -> None:
    for name in command.groups():
        given = [p.names[-1] for p in command.parameters if p.group == name and values[p.keyword]]
        if len(given) > 1:
            raise click.UsageError(f"{' and '.join(given)} exclude each other")
