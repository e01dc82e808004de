"""What the command says of devices, with the simulated driver of tests/sim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cli_files as files
import pytest
from cli_command import Run

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("build/sim", "build/release/sim")


@pytest.fixture(scope="module")
def simulator() -> dict[str, str]:
    """The environment in which the simulated driver is found, with two devices of 4 GiB."""
    for place in PLACES:
        library = ROOT / place / "libcuda.so.1"
        if library.exists():
            cufile = library.with_name("libcufile.so.0")
            return {"PENSTOCK_LIBCUDA": str(library), "PENSTOCK_LIBCUFILE": str(cufile)}
    pytest.skip("the simulated driver is not built (scripts/build_sim.sh does)")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return files.write_file(tmp_path / "m.safetensors", {"a": ("F32", [4], bytes(16))})


def diagnose(run: Run, model: Path, environment: dict[str, str]) -> dict[str, Any]:
    result = run("doctor", model, "--json", environment=environment)
    assert (result.returncode, result.stderr) == (0, "")
    devices: dict[str, Any] = json.loads(result.stdout)["devices"]
    return devices


def test_the_doctor_describes_devices(run: Run, model: Path, simulator: dict[str, str]) -> None:
    devices = diagnose(run, model, {**simulator, "PENSTOCK_SIM_NUMA": "3"})
    assert [(one["number"], one["total_memory"], one["numa_node"]) for one in devices["found"]] == [
        (0, 4 << 30, 3),
        (1, 4 << 30, 3),
    ]
    assert [one["unified"] for one in devices["found"]] == [False, False]
    assert devices["found"][1]["name"].startswith("cuda:1 (")
    assert (devices["driver"], devices["why_none"]) == ("CUDA 12.8", "")
    assert devices["pinned_limit"] == 48 << 20


def test_the_doctor_says_it_in_words(run: Run, model: Path, simulator: dict[str, str]) -> None:
    settings = {"PENSTOCK_SIM_DEVICES": "1", "PENSTOCK_SIM_UNIFIED": "1", "PENSTOCK_PINNED": "8MiB"}
    result = run("doctor", model, environment={**simulator, **settings, "COLUMNS": "200"})
    assert result.returncode == 0, result.stderr
    assert "4.0 GiB, NUMA node 0, shares its memory with the host\n" in result.stdout
    assert "the driver is for CUDA 12.8\n" in result.stdout
    assert "pinned memory  8 MiB at most, " in result.stdout
    assert "environment    PENSTOCK_PINNED=8MiB\n" in result.stdout


def test_the_doctor_makes_no_context_on_any_device(run: Run, model: Path, simulator: dict[str, str]) -> None:
    """A context takes hundreds of MB of a device: each call that could make one is made to fail."""
    calls = ("cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuMemHostRegister_v2", "cuMemHostAlloc")
    failing = ",".join(f"{call}:1+:999" for call in calls)
    devices = diagnose(run, model, {**simulator, "PENSTOCK_SIM_FAIL": failing})
    assert len(devices["found"]) == 2


def test_the_doctor_says_whether_cufile_is_asked(
    run: Run, model: Path, simulator: dict[str, str], tmp_path: Path
) -> None:
    system = tmp_path / "system"
    for name, text in (("proc/modules", ""), ("proc/driver/nvidia-fs/devcount", "1\n"), ("dev/nvidia-fs0", "")):
        (system / name).parent.mkdir(parents=True, exist_ok=True)
        (system / name).write_text(text)
    complete = {**simulator, "PENSTOCK_GDS_ROOT": str(system)}
    assert diagnose(run, model, complete)["gds_obstacle"] == ""
    assert "  GPUDirect      cuFile is asked\n" in run("doctor", model, environment=complete).stdout
    assert diagnose(run, model, {**complete, "PENSTOCK_GDS": "off"})["gds_obstacle"] == "PENSTOCK_GDS turns it off"
    missing = diagnose(run, model, {**complete, "PENSTOCK_LIBCUFILE": "/nowhere/libcufile.so.0"})
    assert missing["gds_obstacle"].startswith("/nowhere/libcufile.so.0: ")
    (system / "dev/nvidia-fs0").unlink()
    assert "/dev/nvidia-fs0 is missing" in diagnose(run, model, complete)["gds_obstacle"]


def test_bench_measures_loads_to_a_device_beside_the_host(run: Run, simulator: dict[str, str], tmp_path: Path) -> None:
    report = tmp_path / "report"
    environment = {**simulator, "PENSTOCK_SIM_REPORT": str(report)}
    arguments = ("bench", "--size", "16MiB", "--rounds", "2", "--device", "1")
    result = run(*arguments, "--json", environment=environment)
    assert (result.returncode, result.stderr) == (0, "")
    measured = json.loads(result.stdout)
    steps = {step["name"]: step for step in measured["results"]}
    assert list(steps)[:4] == ["read_ceiling", "cold_load", "cold_load_reused", "device_load"]
    assert len(steps["device_load"]["rounds"]) == 2
    assert steps["device_load"]["of_drive"] > 0
    assert measured["device"]["name"].startswith("cuda:1 (")
    assert measured["device"]["pinning"] == "registered"
    assert report.read_text() == ""  # nothing was done wrong, nothing leaked
    text = run(*arguments, environment=environment).stdout
    assert "  cold load, device " in text
    assert "pinned memory  registered\n" in text


def test_bench_without_that_device_is_one_line_and_makes_no_model(
    fails: Run, simulator: dict[str, str], tmp_path: Path
) -> None:
    result = fails("bench", "--device", "7", environment=simulator)
    assert result.stderr == "penstock: there is no device 7: there are 2, from 0 on\n"
    result = fails("bench", "--device", "0", environment={"PENSTOCK_LIBCUDA": "/nowhere/libcuda.so.1"})
    assert result.stderr.startswith("penstock: no device can be used: /nowhere/libcuda.so.1: ")
    assert files.names_in(tmp_path) == []


@pytest.mark.parametrize("number", ["-1", "1000", "x", "cuda:0"])
def test_bench_takes_the_number_of_a_device(misused: Run, number: str) -> None:
    result = misused("bench", "--device", number)
    assert result.stderr == f"penstock: --device: Value {number} not in range 0 to 999 (see penstock bench --help)\n"


def test_bench_of_settings_takes_no_device(misused: Run) -> None:
    assert "--device excludes --settings" in misused("bench", "--device", "0", "--settings").stderr


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"PENSTOCK_LIBCUDA": "/nowhere/libcuda.so.1"}, "/nowhere/libcuda.so.1"),
        ({"PENSTOCK_SIM_DEVICES": "0"}, "CUDA_ERROR_NO_DEVICE"),
        ({"PENSTOCK_SIM_DRIVER": "11080"}, "is a driver for CUDA 11.8, and 12.0 or newer is needed"),
        ({"PENSTOCK_SIM_FAIL": "cuInit:1+:802"}, "cuInit failed"),
    ],
)
def test_the_doctor_says_why_there_is_no_device(
    run: Run, model: Path, simulator: dict[str, str], settings: dict[str, str], reason: str
) -> None:
    environment = {**simulator, **settings}
    devices = diagnose(run, model, environment)
    assert devices["found"] == []
    assert reason in devices["why_none"]
    assert devices["gds_obstacle"] == "there is no device"
    text = run("doctor", model, environment={**environment, "COLUMNS": "250"}).stdout
    assert f"devices        {devices['why_none']}\n" in text
    assert "pinned memory" not in text
