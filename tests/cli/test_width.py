"""Nothing that is shown on a terminal is wider than it; in a pipe nothing is broken."""

from __future__ import annotations

import re
from pathlib import Path

import cli_files as files
import pytest
from cli_command import Run, output_on_terminal

LONG = "model.layers.0." + "a_very_long_part_of_a_name." * 6 + "weight"
DEEP = "/".join(["a-folder-with-a-long-name"] * 4)


def visible_lines(text: str) -> list[str]:
    # What a progress bar draws over and over is judged piece by piece.
    return [line.rstrip() for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", text))]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shape = [1] * 14
    floats = ("F32", [*shape, 1], b"\0\0\xc0\x7f")
    (tmp_path / DEEP).mkdir(parents=True)
    path = tmp_path / DEEP / "model.safetensors"
    metadata = {"format": "pt", "a_long_key_" * 5: "a long value " * 20, "words": "x" * 300}
    return files.write_file(path, {LONG: floats, "重" * 60: floats, "short": ("I64", [], b"\0" * 8)}, metadata)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["ls"], 0),
        (["ls", "--summary"], 0),
        (["verify"], 0),
        (["verify", "--finite", "--checksums"], 1),
        (["doctor"], 0),
        (["bench", "--rounds", "1"], 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("columns", [80, 60])
def test_output_fits(command: str, model: Path, tmp_path: Path, arguments: list[str], code: int, columns: int) -> None:
    path = str(model.relative_to(tmp_path))
    text = output_on_terminal([command, *arguments, path], tmp_path, {"TERM": "xterm"}, columns, code)
    # Characters that are two columns wide count twice.
    widths = {line: len(line) + line.count("重") for line in visible_lines(text)}
    assert {line: width for line, width in widths.items() if width > columns} == {}


@pytest.mark.parametrize("columns", [12, 3, 1])
def test_a_terminal_that_is_far_too_narrow_gets_every_character(command: str, tmp_path: Path, columns: int) -> None:
    files.write_file(tmp_path / "m.safetensors", {"重み": ("U8", [1], b"x")})
    text = output_on_terminal([command, "ls", "m.safetensors"], tmp_path, {"TERM": "xterm"}, columns)
    assert [text.count(character) for character in "重み"] == [1, 1]


def test_a_conversion_with_notes_fits(command: str, model: Path, tmp_path: Path) -> None:
    path = str(model.relative_to(tmp_path))
    text = output_on_terminal([command, "convert", path, f"{DEEP}/out.pt"], tmp_path, {"TERM": "xterm"})
    assert "note:" in text
    assert [line for line in visible_lines(text) if len(line) > 80] == []


def test_names_are_wrapped_and_whole(command: str, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors", {LONG: ("U8", [1], b"x")})
    text = output_on_terminal([command, "ls", "m.safetensors"], tmp_path, {"TERM": "xterm"})
    path, titles, *rows, totals = filter(None, visible_lines(text))
    assert path == "m.safetensors"
    assert "1 tensor," in totals
    assert len(rows) > 1
    assert "".join(row[titles.index("NAME") :] for row in rows) == LONG


@pytest.mark.parametrize("columns", [80, 50, 200])
@pytest.mark.parametrize("name", ["ls", "convert", "verify", "bench", "doctor", "completion", "man"])
def test_help_fits(command: str, tmp_path: Path, name: str, columns: int) -> None:
    text = output_on_terminal([command, name, "--help"], tmp_path, {"TERM": "xterm"}, columns)
    # An example is a line to be copied: it is never broken.
    lines = [line for line in visible_lines(text) if not line.startswith("  penstock ")]
    assert max(map(len, lines)) <= min(columns, 100)
    assert max(map(len, visible_lines(text))) <= max(columns, 80)


def test_a_pipe_has_no_width(run: Run, model: Path, tmp_path: Path) -> None:
    text = run("ls", model.relative_to(tmp_path)).stdout
    assert text.splitlines()[0] == str(model.relative_to(tmp_path))
    assert any(line.endswith(LONG) for line in text.splitlines())
