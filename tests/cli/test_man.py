"""Manual pages and the reference in Markdown, which the command prints of itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_command import Run

COMMANDS = ["ls", "convert", "seal", "verify", "bench", "doctor", "completion", "man"]
CMAKE = Path(__file__).parents[2] / "cli" / "CMakeLists.txt"


def options_in_help(run: Run, name: str) -> list[str]:
    return re.findall(r"(?<![\w'-])--[a-z][\w-]*", run(name, "--help").stdout.split("Examples")[0])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_every_option_of_the_help(run: Run, name: str) -> None:
    result = run("man", name)
    assert (result.returncode, result.stderr) == (0, "")
    page = result.stdout.replace("\\-", "-")
    assert page.startswith(f".TH PENSTOCK-{name.upper()} 1 ")
    assert f".SH NAME\npenstock-{name} - " in page
    options = options_in_help(run, name)
    assert "--help" in options
    for option in options:
        assert f"\\fB{option}\\fR" in page
    for section in ("SYNOPSIS", "OPTIONS", "EXAMPLES", "EXIT STATUS", "SEE ALSO"):
        assert f"\n.SH {section}\n" in page


def test_the_page_of_penstock_names_those_of_its_commands(run: Run) -> None:
    page = run("man").stdout.replace("\\-", "-")
    assert page.startswith(".TH PENSTOCK 1 ")
    for command in COMMANDS:
        assert f"\\fBpenstock-{command}\\fR(1)" in page


def test_pages_and_help_are_of_the_same_commands(run: Run) -> None:
    listed = run("--help").stdout.split("Commands\n")[1].split("\n\n")[0]
    assert re.findall(r"^  (\w+)", listed, re.MULTILINE) == COMMANDS
    installed = re.search(r"foreach\(command ([\w ]+)\)", CMAKE.read_text())
    assert installed is not None
    assert installed[1].split() == COMMANDS


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_typesetters_have_nothing_to_complain_about(run: Run, name: str) -> None:
    page = run("man", *filter(None, [name])).stdout
    checkers = [
        ["groff", "-man", "-Tutf8", "-ww", "-rLL=78n"],
        ["mandoc", "-Tlint", "-Wwarning"],
        ["man", "--warnings", "-l", "-"],
    ]
    found = [checker for checker in checkers if shutil.which(checker[0])]
    if not found:
        pytest.skip("neither groff nor mandoc nor man is installed")
    for checker in found:
        result = subprocess.run(checker, input=page, capture_output=True, text=True, check=False)
        complaints = [line for line in (result.stderr + result.stdout * (checker[0] == "mandoc")).splitlines() if line]
        # The same source gives the same page: there is no date.
        assert [line for line in complaints if "missing date" not in line] == [], checker


def test_the_reference_has_a_section_for_each_command(run: Run) -> None:
    text = run("man", "--format", "markdown").stdout
    assert text.startswith("# penstock\n")
    assert re.findall(r"^## penstock (\w+)$", text, re.MULTILINE) == COMMANDS
    for command in COMMANDS:
        section = run("man", command, "--format", "markdown").stdout
        assert section.startswith(f"# penstock {command}\n")
        assert section.replace("# ", "## ", 1).rstrip("\n") in text
        for option in options_in_help(run, command):
            assert re.search(rf"^\| `.*{option}\b.*` \|", section, re.MULTILINE), option
    assert max(len(line) for line in text.splitlines() if not line.startswith(("|", "penstock"))) <= 120


def test_nothing_is_printed_of_a_command_that_is_not_there(misused: Run) -> None:
    misused("man", "nonsense")
    misused("completion", "csh")
    misused("completion")
