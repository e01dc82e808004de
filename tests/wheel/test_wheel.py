"""What `make wheel` built (scripts/wheel.py): looked at, and used in an environment that holds nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import BytesParser
from io import BytesIO
from pathlib import Path

import pytest

if "PENSTOCK_WHEEL" not in os.environ:
    pytest.skip("there is no wheel: `make wheel` builds one and runs these tests", allow_module_level=True)

from elftools.elf.elffile import ELFFile
from readme_renderer.markdown import render

ROOT = Path(__file__).resolve().parents[2]
WHEEL = Path(os.environ["PENSTOCK_WHEEL"])
SDIST = Path(os.environ["PENSTOCK_SDIST"])
PYTHON = Path(os.environ["PENSTOCK_WHEEL_PYTHON"])
SCRIPTS = PYTHON.parent

# What the manylinux policies promise of every Linux with glibc, and of which penstock needs these.
PROMISED = re.compile(r"(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux-(x86-64|aarch64))\.so\.\d+")
# Bundled library -> its licence. The others are compiled in.
LICENCES = {"libfmt": "fmt", "libsimdjson": "simdjson", "liburing": "liburing", "libisal": "isa-l"}
COMPILED_IN = {"CLI11", "nanobind", "robin-map"}

# Run in the new environment. The maps of a process name every library that it really loaded.
SAVE_AND_LOAD = """
import numpy, pathlib, sys
import penstock
for name in ("model.safetensors", "model.flashpack"):
    weights = {"a": numpy.arange(100_000, dtype=numpy.float32), "b": numpy.ones((3, 5), dtype=numpy.int64)}
    penstock.save(weights, name)
    loaded = penstock.load(name, framework="numpy")
    assert sorted(loaded) == ["a", "b"]
    assert all(numpy.array_equal(loaded[key], weights[key]) for key in weights)
    assert penstock.verify(name).ok
print(penstock.__version__)
for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
    if ".so" in line:
        print("library", line.split(maxsplit=5)[5])
"""


def elf_files() -> dict[str, ELFFile]:
    with zipfile.ZipFile(WHEEL) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    return {name: ELFFile(BytesIO(data)) for name, data in contents.items() if data.startswith(b"\x7fELF")}


def needed_libraries(file: ELFFile) -> set[str]:
    return {tag.needed for tag in file.get_section_by_name(".dynamic").iter_tags() if tag.entry.d_tag == "DT_NEEDED"}


def metadata() -> Message:
    with zipfile.ZipFile(WHEEL) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name))


def description() -> str:
    text = metadata().get_payload(decode=True)
    assert isinstance(text, bytes)
    return text.decode()


def run_in_environment(command: list[str | Path], folder: Path) -> str:
    """Runs outside of the repository, with no variable that could lead to another penstock or its libraries."""
    variables = {"PATH": f"{SCRIPTS}:/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(command, check=False, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tag_says_manylinux_and_which_pythons() -> None:
    python = "cp312-abi3" if sys.version_info >= (3, 12) else f"cp3{sys.version_info.minor}-cp3{sys.version_info.minor}"
    assert re.fullmatch(rf"penstock-[0-9.]+-{python}-(manylinux_\d_\d+_(x86_64|aarch64)\.?)+\.whl", WHEEL.name)


def test_red_hat_9_is_new_enough() -> None:
    versions = [int(minor) for minor in re.findall(r"manylinux_2_(\d+)", WHEEL.name)]
    assert min(versions) <= 34


def test_every_library_is_in_the_wheel_or_on_every_linux() -> None:
    files = elf_files()
    bundled = {Path(name).name for name in files if name.startswith("penstock.libs/")}
    assert {Path(name).name.partition(".")[0] for name in files} >= {"_core", "penstock"}
    for name, file in files.items():
        missing = {library for library in needed_libraries(file) - bundled if not PROMISED.fullmatch(library)}
        assert missing == set(), name


def test_licences_of_all_that_is_inside_are_inside() -> None:
    bundled = {re.split(r"[-.]", Path(name).name)[0] for name in elf_files() if name.startswith("penstock.libs/")}
    assert bundled
    wanted = {LICENCES[library] for library in bundled} | COMPILED_IN
    assert {f"licenses/{name}.txt" for name in wanted} | {"LICENSE"} <= set(metadata().get_all("License-File", []))
    with zipfile.ZipFile(WHEEL) as archive:
        inside = {name.partition(".dist-info/licenses/")[2] for name in archive.namelist()}
    assert {f"licenses/{name}.txt" for name in wanted} | {"LICENSE"} <= inside


def test_metadata_is_what_an_index_accepts() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", WHEEL, SDIST], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_description_renders_without_targets_in_the_repository() -> None:
    html = render(description())
    assert html is not None
    assert re.match(r"<h1[^>]*>penstock<", html)
    targets = re.findall(r'(?:href|src|srcset)="([^"]*)"', html)
    assert [target for target in targets if not re.match(r"https?://|#", target)] == []


def test_the_source_distribution_holds_sources_and_nothing_that_was_built() -> None:
    with tarfile.open(SDIST) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "README.md", "licenses/fmt.txt", "scripts/build_native.sh", "scripts/wheel.py"} <= names
    assert {"include/penstock/reader.h", "docs/architecture.md", "tests/wheel/test_wheel.py"} <= names
    assert [name for name in names if re.match(r"build/|dist/|\.venv|\.git/|\.git$|.*\.(so|o|pyc)$", name)] == []


def test_an_environment_with_nothing_else_saves_and_loads(tmp_path: Path) -> None:
    lines = run_in_environment([PYTHON, "-I", "-c", SAVE_AND_LOAD], tmp_path).splitlines()
    assert lines[0] == metadata()["Version"]
    loaded = {Path(line.removeprefix("library ")) for line in lines[1:]}
    ours = {path for path in loaded if "penstock" in path.parent.name}
    assert any(path.name.startswith("_core.") for path in ours)
    for library in ("fmt", "simdjson", "isal", "uring"):
        assert [path for path in loaded - ours if path.name.startswith(f"lib{library}")] == []


def test_the_command_works_in_an_environment_with_nothing_else(tmp_path: Path) -> None:
    run_in_environment([PYTHON, "-I", "-c", SAVE_AND_LOAD], tmp_path)
    assert metadata()["Version"] in run_in_environment([SCRIPTS / "penstock", "--version"], tmp_path)
    assert "100000" in run_in_environment([SCRIPTS / "penstock", "ls", "model.safetensors"], tmp_path)
    run_in_environment([SCRIPTS / "penstock", "convert", "model.safetensors", "copy.flashpack"], tmp_path)
    run_in_environment([SCRIPTS / "penstock", "verify", "copy.flashpack"], tmp_path)
