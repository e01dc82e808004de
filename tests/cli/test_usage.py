from __future__ import annotations

import re
from pathlib import Path

import cli_files as files
import pytest
from cli_command import Run, output_on_terminal

COMMANDS = ["ls", "convert", "seal", "verify", "bench", "doctor"]


def test_version(run: Run) -> None:
    result = run("--version")
    assert result.returncode == 0
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\n", result.stdout)


def test_help_names_every_command(run: Run) -> None:
    result = run("--help")
    assert result.returncode == 0
    assert result.stderr == ""
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", result.stdout, re.MULTILINE)
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize("subcommand", COMMANDS)
def test_every_command_has_help_with_examples_and_json(run: Run, subcommand: str) -> None:
    result = run(subcommand, "--help")
    assert result.returncode == 0
    assert f"penstock {subcommand} " in result.stdout
    assert "Examples" in result.stdout
    assert "--json" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_nothing_at_all_prints_help_and_is_wrong_usage(run: Run) -> None:
    result = run()
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Commands" in result.stderr


@pytest.mark.parametrize(
    ("asked", "same"),
    [
        (["help"], ["--help"]),
        (["help", "help"], ["--help"]),
        (["help", "--help"], ["--help"]),
        (["help", "ls"], ["ls", "--help"]),
        (["help", "convert"], ["convert", "--help"]),
    ],
    ids=" ".join,
)
def test_help_as_a_command_answers_like_the_option(run: Run, asked: list[str], same: list[str]) -> None:
    result = run(*asked)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == run(*same).stdout
    assert result.stdout.splitlines() != []


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["ls"],
        ["ls", "--nonsense", "m.safetensors"],
        ["ls", "--sort", "colour", "m.safetensors"],
        ["convert", "only-one"],
        ["convert", "a", "b", "--dtype", "F31"],
        ["convert", "a", "b", "--dtype", "I32"],
        ["convert", "a", "b", "--max-shard-size", "many"],
        ["verify"],
        ["bench", "--rounds", "0"],
        ["bench", "--size", "-1"],
        ["doctor"],
        ["doctor", "a", "b"],
        ["bench", "--settings=maybe"],
        ["ls", "--color", "sometimes", "m.safetensors"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_exit_code_2(misused: Run, tmp_path: Path, arguments: list[str]) -> None:
    assert "--help" in misused(*arguments).stderr
    assert files.names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lss"], "there is no command 'lss'; did you mean 'ls'? (see penstock --help)"),
        (["sl", "x"], "there is no command 'sl'; did you mean 'ls'? (see penstock --help)"),
        (["covnert", "a", "b"], "there is no command 'covnert'; did you mean 'convert'? (see penstock --help)"),
        (["help", "lss"], "there is no command 'lss'; did you mean 'ls'? (see penstock --help)"),
        (["entirely"], "there is no command 'entirely' (see penstock --help)"),
        (["--verison"], "penstock has no option '--verison'; did you mean '--version'? (see penstock --help)"),
        (
            ["ls", "--sumary", "a"],
            "penstock ls has no option '--sumary'; did you mean '--summary'? (see penstock ls --help)",
        ),
        (
            ["ls", "--sumary"],
            "penstock ls has no option '--sumary'; did you mean '--summary'? (see penstock ls --help)",
        ),
        (
            ["ls", "a", "--srot=size"],
            "penstock ls has no option '--srot'; did you mean '--sort'? (see penstock ls --help)",
        ),
        (
            ["ls", "a", "--sel", "x"],
            "penstock ls has no option '--sel'; did you mean '--select'? (see penstock ls --help)",
        ),
        (["ls", "a", "-x"], "penstock ls has no option '-x' (see penstock ls --help)"),
        (["bench", "--everything"], "penstock bench has no option '--everything' (see penstock bench --help)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_typo_is_answered_with_what_is_nearest(misused: Run, arguments: list[str], message: str) -> None:
    assert misused(*arguments).stderr == f"penstock: {message}\n"


@pytest.mark.parametrize("arguments", [["ls", "m.safetensors"], ["verify", "m.safetensors"], ["ls", "--help"]])
def test_a_pipe_gets_no_escape_codes_unless_asked(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    files.write_file(tmp_path / "m.safetensors")
    plain = run(*arguments)
    assert "\x1b" not in plain.stdout + plain.stderr
    assert plain.stdout.isascii()
    coloured = run(*arguments, "--color=always").stdout
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain.stdout


def test_a_terminal_gets_colours_unless_no_color_is_set(command: str, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors")
    arguments = [command, "ls", "m.safetensors"]
    terminal = {"TERM": "xterm", "NO_COLOR": ""}
    assert "\x1b[" in output_on_terminal(arguments, tmp_path, terminal)
    assert "\x1b[" not in output_on_terminal(arguments, tmp_path, {**terminal, "NO_COLOR": "1"})
    assert "\x1b[" not in output_on_terminal(arguments, tmp_path, {**terminal, "TERM": "dumb"})
    assert "\x1b[" not in output_on_terminal([*arguments, "--color=never"], tmp_path, terminal)
    assert "\x1b[" not in output_on_terminal([*arguments, "--json"], tmp_path, terminal)
