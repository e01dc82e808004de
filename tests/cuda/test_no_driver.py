"""There is a library and no driver: what the doctor says, and that loads and saves on the host take no notice.

With NVIDIA's libcudart and libcufile, and with files that are no libraries. Each case has a process of its own, because
a driver is looked for once.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vendor import Files

SECONDS = 60  # what waits for ever must not hold up the others

# Loads, saves and loads again; prints what the doctor says of devices, and the libraries of NVIDIA's in the process.
PROGRAM = """
import json
import numpy as np
import penstock

tensors = {"a": np.arange(3_000_000, dtype=np.float32), "b": np.ones((7, 5), dtype=np.int64)}
penstock.save(tensors, "model.safetensors", format="safetensors")
for cache in ("direct", "buffered", "mmap"):
    loaded = penstock.load("model.safetensors", framework="numpy", cache=cache)
    assert all(np.array_equal(loaded[name], tensors[name]) for name in tensors)
devices = penstock.doctor("model.safetensors").devices
with open("/proc/self/maps") as maps:
    libraries = sorted({line.split()[-1] for line in maps if "libcu" in line})
print(json.dumps({"devices": devices, "libraries": libraries}))
"""


@pytest.fixture(autouse=True)
def without_a_driver() -> None:
    if ctypes.util.find_library("cuda"):
        pytest.skip("there is a driver on this machine")


def use_penstock(folder: Path, program: str = PROGRAM, **variables: str) -> dict[str, Any]:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stderr) == (0, "")
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def check_that_there_is_none(said: dict[str, Any], reason: str) -> None:
    """No device, for this reason, in one line; and cuFile was not touched."""
    assert said["devices"]["found"] == []
    assert said["devices"]["why_none"] == f"no device can be used: {reason}"
    assert said["devices"]["gds_obstacle"] == "there is no device"
    assert not [path for path in said["libraries"] if "libcufile" in path]


def test_no_library_at_all(tmp_path: Path) -> None:
    said = use_penstock(tmp_path)
    reason = "libcuda.so.1: cannot open shared object file: No such file or directory"
    check_that_there_is_none(said, reason)
    assert said["libraries"] == []


def test_a_library_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "libcuda.so.1"
    said = use_penstock(tmp_path, PENSTOCK_LIBCUDA=str(missing))
    check_that_there_is_none(said, f"{missing}: cannot open shared object file: No such file or directory")


@pytest.mark.parametrize(
    ("content", "problem"), [("no library\n", "file too short"), ("no " * 99, "invalid ELF header")]
)
def test_a_library_that_is_a_text(content: str, problem: str, tmp_path: Path) -> None:
    text = tmp_path / "libcuda.so.1"
    text.write_text(content)
    said = use_penstock(tmp_path, PENSTOCK_LIBCUDA=str(text))
    check_that_there_is_none(said, f"{text}: {problem}")


@pytest.fixture
def libraries(toolkit: Files) -> Files:
    if platform.machine() != "x86_64":
        pytest.skip("the libraries are for x86-64")
    return toolkit


def test_a_library_without_the_drivers_functions(libraries: Files, tmp_path: Path) -> None:
    said = use_penstock(tmp_path, PENSTOCK_LIBCUDA=str(libraries.libcudart))
    check_that_there_is_none(said, f"{libraries.libcudart} has no cuInit")


def test_a_process_that_uses_the_runtime_without_a_driver(libraries: Files, tmp_path: Path) -> None:
    """As torch does that was built for CUDA: every function of the runtime gives cudaErrorInsufficientDriver."""
    runtime = f"ctypes.CDLL({str(libraries.libcudart)!r})"
    program = f"import ctypes\nassert {runtime}.cudaGetDeviceCount(ctypes.byref(ctypes.c_int())) == 35\n{PROGRAM}"
    said = use_penstock(tmp_path, program)
    assert said["libraries"] == [str(libraries.libcudart.resolve())]
    check_that_there_is_none(said, "libcuda.so.1: cannot open shared object file: No such file or directory")


@pytest.mark.parametrize("gds", ["on", "auto"])
def test_cufile_without_a_device_is_never_touched(gds: str, libraries: Files, tmp_path: Path) -> None:
    """1.19 waits for ever in cuFileDriverOpen where the kernel has no modules."""
    settings = {"PENSTOCK_LIBCUFILE": str(libraries.libcufile), "PENSTOCK_GDS": gds}
    said = use_penstock(tmp_path, **settings)
    check_that_there_is_none(said, "libcuda.so.1: cannot open shared object file: No such file or directory")
