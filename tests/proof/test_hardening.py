"""The extension and the command are linked as what is exposed to hostile files should be: read from the binaries."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import penstock._core
import pytest

EXTENSION = Path(penstock._core.__file__)
COMMAND = Path(sys.executable).with_name("penstock")


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


@pytest.fixture(params=[EXTENSION, COMMAND], ids=["extension", "command"])
def binary(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    if shutil.which("readelf") is None:
        pytest.skip("readelf (binutils) is not there")
    if not path.is_file() or not is_elf(path):
        pytest.skip(f"{path.name} is not installed beside this Python as a binary")
    return path


def read_elf(binary: Path, *options: str) -> str:
    return subprocess.run(["readelf", "-W", *options, str(binary)], check=True, capture_output=True, text=True).stdout


def test_it_is_position_independent(binary: Path) -> None:
    assert re.search(r"Type:\s+DYN", read_elf(binary, "-h"))
    if binary == COMMAND:
        assert re.search(r"FLAGS_1.*\bPIE\b", read_elf(binary, "-d"))


def test_what_the_linker_filled_in_is_read_only(binary: Path) -> None:
    assert "GNU_RELRO" in read_elf(binary, "-l")
    dynamic = read_elf(binary, "-d")
    assert re.search(r"BIND_NOW|FLAGS_1.*\bNOW\b", dynamic)
    assert "TEXTREL" not in dynamic


def test_nothing_is_both_written_and_executed(binary: Path) -> None:
    segments = read_elf(binary, "-l")
    assert re.search(r"GNU_STACK.*\bRW\b", segments)
    assert not re.search(r"(LOAD|GNU_STACK).*\bR?WE\b", segments)


def test_stacks_are_guarded_and_sizes_are_checked(binary: Path) -> None:
    symbols = read_elf(binary, "--dyn-syms")
    assert "__stack_chk_fail" in symbols
    assert re.search(r"__(memcpy|memmove|memset|read|pread|pread64|snprintf|vsnprintf|poll|recv)_chk", symbols)


def test_libraries_are_looked_for_beside_it_and_nowhere_else(binary: Path) -> None:
    paths = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", read_elf(binary, "-d"))
    assert all(path.startswith("$ORIGIN/") for whole in paths for path in whole.split(":"))


def test_the_extension_shows_nothing_but_its_entry(binary: Path) -> None:
    if binary != EXTENSION:
        pytest.skip("about the extension")
    shown = re.findall(r"(?:FUNC|OBJECT)\s+GLOBAL\s+DEFAULT\s+\d+\s+(\S+)", read_elf(binary, "--dyn-syms"))
    assert [name for name in shown if not name.startswith(("nb_", "_ZN8nanobind"))] == ["PyInit__core"]
