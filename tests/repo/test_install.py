"""An installed library is found and linked as docs/install.md says: by CMake and pkg-config, static and shared."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONSUMER = ROOT / "examples" / "cpp" / "consumer"
MODEL = ROOT / "tests" / "data" / "safetensors" / "dtypes.safetensors"
DECLARING_HEADERS = [
    path for path in sorted((ROOT / "include" / "penstock").glob("*.h")) if path.name not in {"penstock.h", "export.h"}
]
CXX20_ERROR = "penstock needs C++20: compile with -std=c++20"


def run(command: list[str | Path], *, fails: bool = False, **variables: str) -> str:
    """All that a program printed."""
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert (done.returncode != 0) == fails, done.stdout
    return done.stdout


@pytest.fixture(scope="module", params=["release", "shared"])
def prefix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the static (`release`) and then the shared library is installed."""
    build = ROOT / "build" / request.param
    if not (ROOT / "build" / "release" / "src" / "libpenstock.a").exists():
        pytest.skip("the library is not built in build/release (`make test STAGES=release` does)")
    if request.param == "shared":
        run(["scripts/build_native.sh", "shared"])
    folder = tmp_path_factory.mktemp(request.param)
    run(["cmake", "--install", build, "--prefix", folder])
    return folder


def is_static(prefix: Path) -> bool:
    return (prefix / "lib" / "libpenstock.a").exists()


def configure_consumer(prefix: Path, build: Path, *options: str, fails: bool = False) -> str:
    command: list[str | Path] = ["cmake", "-S", CONSUMER, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", *options]
    return run(command, fails=fails)


def expect_it_counts(program: Path, prefix: Path) -> None:
    printed = run([program, MODEL], LD_LIBRARY_PATH=str(prefix / "lib"))
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+: [1-9]\d* tensors\n", printed)


def test_cmake_finds_and_links_it(prefix: Path, tmp_path: Path) -> None:
    configure_consumer(prefix, tmp_path)
    run(["cmake", "--build", tmp_path])
    expect_it_counts(tmp_path / "consumer", prefix)


def test_pkg_config_finds_and_links_it(prefix: Path, tmp_path: Path) -> None:
    command = ["pkg-config", "--cflags", "--libs", *(["--static"] if is_static(prefix) else []), "penstock"]
    flags = run(command, PKG_CONFIG_PATH=str(prefix / "lib" / "pkgconfig")).split()
    program = tmp_path / "consumer"
    run(["c++", "-std=c++20", CONSUMER / "consumer.cc", "-o", program, *flags])
    expect_it_counts(program, prefix)


def test_a_static_library_says_which_package_is_missing_and_a_shared_one_needs_none(
    prefix: Path, tmp_path: Path
) -> None:
    printed = configure_consumer(prefix, tmp_path, "-DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON", fails=is_static(prefix))
    assert ("apt install libfmt-dev" in printed) == is_static(prefix)


def test_a_shared_library_has_its_version_in_its_name_and_shows_the_public_names_alone(prefix: Path) -> None:
    if is_static(prefix):
        pytest.skip("it is about the shared library")
    library = prefix / "lib" / "libpenstock.so"
    version = re.search(r"VERSION (\d+\.\d+)\.\d+", (ROOT / "CMakeLists.txt").read_text())
    assert version
    assert f"[libpenstock.so.{version[1]}]" in run(["readelf", "-d", library])
    names = run(["nm", "-DC", "--defined-only", library])
    assert " T penstock::version()" in names
    assert " T penstock::Reader::Reader(" in names
    assert "penstock::cast_elements(" not in names
    assert "penstock::Crew::" not in names


@pytest.mark.parametrize(
    ("options", "pkg_config_folder", "line"),
    [
        (["-DCMAKE_DISABLE_FIND_PACKAGE_simdjson=ON"], None, "apt install libsimdjson-dev\n"),
        ([], "/nowhere", "apt install liburing-dev libisal-dev\n"),
        (["-DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON"], None, "apt install libcli11-dev\n"),
    ],
)
def test_configuring_without_a_library_says_what_to_install(
    options: list[str], pkg_config_folder: str | None, line: str, tmp_path: Path
) -> None:
    variables = {"PKG_CONFIG_LIBDIR": pkg_config_folder} if pkg_config_folder else {}
    printed = run(["cmake", "-S", ROOT, "-B", tmp_path, *options], fails=True, **variables)
    assert line in printed


def test_the_tests_are_those_of_the_static_library(tmp_path: Path) -> None:
    options = ["-DBUILD_SHARED_LIBS=ON", "-DPENSTOCK_BUILD_TESTS=ON"]
    printed = run(["cmake", "-S", ROOT, "-B", tmp_path, *options], fails=True)
    assert "set one of PENSTOCK_BUILD_TESTS and BUILD_SHARED_LIBS to OFF" in " ".join(printed.split())


def test_an_older_language_is_refused_with_what_to_type() -> None:
    command = ["c++", "-std=c++17", "-fsyntax-only", "-fmax-errors=1", "-x", "c++"]
    assert CXX20_ERROR in run([*command, "-I", ROOT / "include", ROOT / "include/penstock/dtype.h"], fails=True)


@pytest.mark.parametrize("header", DECLARING_HEADERS, ids=lambda path: path.name)
def test_public_names_are_exported(header: Path) -> None:
    text = header.read_text()
    assert '#include "penstock/export.h"' in text
    assert re.findall(r"^namespace (.*) \{$", text, re.MULTILINE)[0] == "PENSTOCK_EXPORT penstock"
