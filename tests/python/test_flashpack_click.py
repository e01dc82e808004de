"""penstock.flashpack.__main__.main: the command as the click group that flashpack's own is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import torch
from flashpack_command import make_state, run
from penstock.flashpack import _command, get_flashpack_file_metadata, pack_to_file, revert_from_file
from penstock.flashpack._definitions import COMMANDS

click = pytest.importorskip("click", reason="click is not installed")
from click.testing import CliRunner, Result  # noqa: E402
from penstock.flashpack.__main__ import convert, main, metadata, revert  # noqa: E402

# The parameters of flashpack 0.4.5's commands: name, option strings, whether it must be given, is a flag, repeats.
COMMANDS_OF_FLASHPACK: dict[str, list[tuple[str, set[str], bool, bool, bool]]] = {
    "metadata": [
        ("path", set(), True, False, False),
        ("show_index", {"-i", "--show-index"}, False, True, False),
        ("json", {"-j", "--json"}, False, True, False),
    ],
    "convert": [
        ("path_or_repo_id", set(), True, False, False),
        ("destination_path", set(), False, False, False),
        ("subfolder", {"--subfolder"}, False, False, False),
        ("variant", {"--variant"}, False, False, False),
        ("dtype", {"--dtype"}, False, False, False),
        ("ignore_names", {"--ignore-names"}, False, False, True),
        ("ignore_prefixes", {"--ignore-prefixes"}, False, False, True),
        ("ignore_suffixes", {"--ignore-suffixes"}, False, False, True),
        ("use_transformers", {"--use-transformers"}, False, True, False),
        ("use_diffusers", {"--use-diffusers"}, False, True, False),
        ("verbose", {"-v", "--verbose"}, False, True, False),
    ],
    "revert": [
        ("path", set(), True, False, False),
        ("destination_path", set(), False, False, False),
        ("verbose", {"-v", "--verbose"}, False, True, False),
    ],
}


def invoke(*arguments: str | Path, command: Any = main) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_it_is_a_group_with_the_commands_of_its_namesake() -> None:
    assert isinstance(main, click.Group)
    assert main.name == "flashpack"
    assert {name: main.commands[name] for name in COMMANDS_OF_FLASHPACK} == {
        "convert": convert,
        "revert": revert,
        "metadata": metadata,
    }
    for name, expected in COMMANDS_OF_FLASHPACK.items():
        found = {parameter.name: parameter for parameter in main.commands[name].params}
        for parameter, strings, required, flag, repeated in expected:
            ours = found[parameter]
            assert ours.required == required
            if strings:
                assert isinstance(ours, click.Option)
                assert (set(ours.opts), ours.is_flag, ours.multiple) == (strings, flag, repeated)
            else:
                assert isinstance(ours, click.Argument)
        arguments = [p.name for p in main.commands[name].params if isinstance(p, click.Argument)]
        assert arguments == [parameter for parameter, strings, *_ in expected if not strings]


def test_the_group_and_the_command_take_the_same() -> None:
    parser: Any = _command._parser()
    subparsers = next(action for action in parser._actions if action.dest == "==SUPPRESS==").choices
    assert set(subparsers) == set(main.commands) == {command.name for command in COMMANDS}
    for name, subparser in subparsers.items():
        taken = {action.dest: set(action.option_strings) for action in subparser._actions if action.dest != "help"}
        assert taken == {
            p.name: set(p.opts) if isinstance(p, click.Option) else set() for p in main.commands[name].params
        }


def test_a_file_goes_there_and_back(tmp_path: Path) -> None:
    state = make_state()
    source, packed, back = (tmp_path / name for name in ("a.safetensors", "a.flashpack", "b.safetensors"))
    penstock.save(state, source)
    result = invoke("convert", source, packed, "--ignore-names", "steps", "--ignore-suffixes", ".bias")
    assert (result.exit_code, result.output) == (0, f"Success: Saved to {packed}\n")
    kept = {name: state[name] for name in ("embed.weight", "head.weight")}
    helpers.assert_same_tensors(revert_from_file(packed), kept)
    result = invoke("revert", packed, back)
    assert (result.exit_code, result.output) == (0, f"Success: Saved to {back}\n")
    helpers.assert_same_tensors(penstock.load(back), kept)


def test_metadata_is_what_the_command_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.flashpack"
    pack_to_file(make_state(), path)
    for options in ([], ["-i"], ["--json"]):
        result = invoke("metadata", path, *options)
        assert (0, result.output, "") == run(capsys, "metadata", path, *options)
    assert json.loads(invoke("metadata", path, "-j", "-i").output) == get_flashpack_file_metadata(path)


def test_it_can_be_part_of_another_group(tmp_path: Path) -> None:
    path = tmp_path / "a.flashpack"
    pack_to_file({"x": torch.ones(3)}, path)
    outer = click.Group("tools", commands={"pack": main})
    result = invoke("pack", "metadata", path, command=outer)
    assert (result.exit_code, result.output.splitlines()[0]) == (0, "format: flashpack_v3")
    assert main(["metadata", str(path)], standalone_mode=False) is None


def test_errors_are_one_line_and_end_with_1(tmp_path: Path) -> None:
    (tmp_path / "bad.flashpack").write_bytes(b"no")
    for arguments in (["metadata"], ["revert"], ["convert", "--use-transformers"]):
        result = invoke(*arguments, tmp_path / "bad.flashpack")
        assert result.exit_code == 1
        assert result.output.startswith("Error: ")
        assert len(result.output.splitlines()) == 1
    result = invoke("revert", tmp_path / "bad.flashpack", "-v")
    assert result.exit_code == 1
    assert "Traceback" in result.output


def test_wrong_usage_ends_with_2() -> None:
    for arguments in (["frobnicate"], ["convert"], ["convert", "a", "--use-transformers", "--use-diffusers"]):
        assert invoke(*arguments).exit_code == 2
    result = invoke("convert", "a", "--use-transformers", "--use-diffusers")
    assert "--use-transformers and --use-diffusers exclude each other" in result.output


def test_it_says_the_version_that_it_stands_in_for() -> None:
    assert invoke("--version").output == "flashpack, version 0.4.5\n"


def test_the_command_itself_does_without_click() -> None:
    script = """
        import sys
        sys.modules["click"] = None
        from penstock.flashpack import _command
        try:
            _command.main(["--version"])
        except SystemExit as end:
            print(end.code)
        try:
            from penstock.flashpack.__main__ import main
        except ImportError as error:
            print(type(error).__name__, error)
        import penstock.flashpack.__main__ as module
        print(hasattr(module, "no_such_name"))
    """
    lines = helpers.run_python(script).stdout.splitlines()
    assert lines == [
        f"penstock {penstock.__version__}",
        "0",
        "LibraryError penstock.flashpack.__main__.main is a click group, and click is not installed: "
        "pip install 'penstock[click]'",
        "False",
    ]
