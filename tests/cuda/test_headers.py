"""What src/device declares of CUDA and cuFile is what NVIDIA's headers declare: functions, constants, structs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from vendor import Files

ROOT = Path(__file__).resolve().parents[2]
CHECK = Path(__file__).with_name("vendor_check.cc")
ENVIRONMENT = {**os.environ, "LC_ALL": "C"}  # the messages of the compiler
DECLARATIONS = [ROOT / "src" / "device" / name for name in ("cuda_types.h", "cuda_api.h", "cufile_api.h")]


def compile_check(toolkit: Files, sources: Path) -> subprocess.CompletedProcess[str]:
    """Compiles the comparison with the declarations below `sources`."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    command = [compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{sources}"]
    command += [f"-isystem{header.parent}" for header in (toolkit.cuda_h, toolkit.cufile_h)]
    return subprocess.run([*command, str(CHECK)], check=False, capture_output=True, text=True, env=ENVIRONMENT)


def test_every_declaration_is_the_vendors(toolkit: Files) -> None:
    done = compile_check(toolkit, ROOT / "src")
    assert done.returncode == 0, done.stderr


# What is planted: the text of a declaration, what it becomes, and what the compiler says of it.
MISTAKES = {
    "a parameter too many": (
        "X(init, cuInit, (unsigned))",
        "X(init, cuInit, (unsigned, int))",
        "cuInit is another function",
    ),
    "a parameter too few": (
        "X(event_record, cuEventRecord, (Event, Stream))",
        "X(event_record, cuEventRecord, (Event))",
        "cuEventRecord is another function",
    ),
    "parameters in another order": (
        "X(event_record, cuEventRecord, (Event, Stream))",
        "X(event_record, cuEventRecord, (Stream, Event))",
        "cuEventRecord is another function",
    ),
    "a narrower integer": (
        "X(free, cuMemFree_v2, (Address))",
        "X(free, cuMemFree_v2, (unsigned))",
        "cuMemFree_v2 is another function",
    ),
    "a narrower integer in the place of an enum": (
        "X(device_attribute, cuDeviceGetAttribute, (int*, int, Ordinal))",
        "X(device_attribute, cuDeviceGetAttribute, (int*, short, Ordinal))",
        "cuDeviceGetAttribute is another function",
    ),
    "a pointer to something smaller": (
        "X(memory_info, cuMemGetInfo_v2, (std::size_t*, std::size_t*))",
        "X(memory_info, cuMemGetInfo_v2, (std::size_t*, unsigned*))",
        "cuMemGetInfo_v2 is another function",
    ),
    "a value for a pointer": (
        "X(driver_version, cuDriverGetVersion, (int*))",
        "X(driver_version, cuDriverGetVersion, (int))",
        "cuDriverGetVersion is another function",
    ),
    "an older function of the same name": (
        "X(push_context, cuCtxPushCurrent_v2, (Context))",
        "X(push_context, cuCtxPushCurrent, (Context))",
        "cuCtxPushCurrent is renamed by the headers",
    ),
    "a function that does not exist": (
        "X(push_context, cuCtxPushCurrent_v2, (Context))",
        "X(push_context, cuCtxPushCurrent_v9, (Context))",
        "cuCtxPushCurrent_v9",
    ),
    "another result": (
        "X(void, handle_deregister,",
        "X(int, handle_deregister,",
        "cuFileHandleDeregister is another function",
    ),
    "a pointer that is not const": (
        "X(FileError, buffer_deregister, cuFileBufDeregister, (const void*))",
        "X(FileError, buffer_deregister, cuFileBufDeregister, (void*))",
        "cuFileBufDeregister is another function",
    ),
    "another value": ("kNotReady = 600;", "kNotReady = 601;", "kNotReady is not CUDA_ERROR_NOT_READY"),
    "another default": ("int type = 1;", "int type = 2;", "is not CU_FILE_HANDLE_TYPE_OPAQUE_FD"),
    "a member too many": (
        "Result driver_error = 0;",
        "Result driver_error = 0; int more = 0;",
        "FileError has another size",
    ),
    "a member in another place": (
        "int file_error = 0;\n  Result driver_error = 0;",
        "Result driver_error = 0;\n  int file_error = 0;",
        "file_error is in another place",
    ),
}


@pytest.mark.parametrize("toolkit", ["13"], indirect=True)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_declaration_does_not_compile(mistake: str, toolkit: Files, tmp_path: Path) -> None:
    right, wrong, message = MISTAKES[mistake]
    found = 0
    (tmp_path / "device").mkdir()
    for header in DECLARATIONS:
        text = header.read_text()
        found += text.count(right)
        (tmp_path / "device" / header.name).write_text(text.replace(right, wrong))
    assert found == 1, f"the declarations hold {right!r} {found} times"
    done = compile_check(toolkit, tmp_path)
    assert done.returncode != 0
    assert message in done.stderr


def test_every_constant_is_compared() -> None:
    constants = [name for path in DECLARATIONS for name in re.findall(r"constexpr [\w:]+ (k\w+)", path.read_text())]
    check = CHECK.read_text()
    assert constants
    missing = [name for name in constants if not re.search(rf"\b{name}\b", check)]
    assert missing == [], f"{CHECK.name} needs a line for each of them"


def test_every_struct_is_compared() -> None:
    structs = [name for path in DECLARATIONS for name in re.findall(r"struct (\w+) \{  // CU", path.read_text())]
    check = CHECK.read_text()
    assert structs
    missing = [name for name in structs if f"PENSTOCK_CHECK_STRUCT({name})" not in check]
    assert missing == [], f"{CHECK.name} needs a line for each of them"


def test_every_error_that_is_explained_is_one_of_cufiles(toolkit: Files) -> None:
    explained = re.findall(r"\{(5\d\d\d), ", (ROOT / "src" / "device" / "cuda_file.cc").read_text())
    given = re.findall(r"CUFILE_OP\(CUFILEOP_BASE_ERR \+ (\d+),", toolkit.cufile_h.read_text())
    assert explained
    assert {int(number) for number in explained} <= {5000 + int(number) for number in given}


def test_libcufile_has_every_function(toolkit: Files) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the library is one for x86-64")
    symbols = re.findall(r"\b(cuFile\w+), \(", (ROOT / "src" / "device" / "cufile_api.h").read_text())
    assert "cuFileRead" in symbols
    program = "import ctypes, sys; [getattr(ctypes.CDLL(sys.argv[1]), name) for name in sys.argv[2:]]"
    command = [sys.executable, "-c", program, str(toolkit.libcufile), *symbols]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
