"""NVIDIA's own libcufile on the simulated driver, in compatibility mode: a GPU and nvidia-fs are all that is missing.

What it gives is what the simulated libcufile has to give, and what src/device declares of it is enough to use it.
"""

from __future__ import annotations

import platform
import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import penstock
import pytest
from namespace import require_namespaces, run_with_udev
from vendor import Files

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
SIMULATOR = ROOT / "build" / "sim"
DEVICE_PROGRAM = ROOT / "build" / "release" / "tests" / "cuda" / "penstock_device_program"
NBYTES = 3 * 1024 * 1024 + 4096


@pytest.fixture(scope="session", autouse=True)
def simulator() -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the library is one for x86-64")
    require_namespaces()
    subprocess.run([ROOT / "scripts" / "build_sim.sh"], check=True)


def compile_program(source: str, target: Path, *options: str) -> Path:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    command = [compiler, "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'src'}", *options]
    subprocess.run([*command, str(HERE / source), "-o", str(target), "-ldl"], check=True)
    return target


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program("cufile_program.cc", tmp_path_factory.mktemp("cufile") / "program")


@pytest.fixture(scope="session")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("preload") / "proc_modules.so"
    return compile_program("proc_modules.cc", target, "-shared", "-fPIC")


def zeros_around(content: bytes, offset: int) -> bytes:
    return bytes(offset) + content + bytes(NBYTES - offset - len(content))


@dataclass(frozen=True)
class Scene:
    """Where cufile_program works: its files are in the folder."""

    folder: Path
    program: Path
    preload: Path
    content: bytes

    def play(self, libcufile: Path, mode: str, **variables: str) -> dict[str, int]:
        """What each function gave."""
        (self.folder / "output").write_bytes(bytes(NBYTES))
        report = self.folder / "report"
        command = [self.program, SIMULATOR / "libcuda.so.1", libcufile, "input", "output", mode, "device"]
        done = run_with_udev(
            [str(word) for word in command],
            self.folder,
            self.preload,
            SIMULATOR,
            PENSTOCK_SIM_REPORT=str(report),
            **variables,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert report.read_text() == ""  # no violation of the driver's rules, no leak
        return {name: int(value) for name, value in (line.split() for line in done.stdout.splitlines())}

    def device_memory(self, what: str) -> bytes:
        return (self.folder / "device" / what).read_bytes()


@pytest.fixture
def scene(tmp_path: Path, program: Path, preload: Path) -> Scene:
    content = random.Random(19).randbytes(NBYTES)
    (tmp_path / "input").write_bytes(content)
    (tmp_path / "device").mkdir()
    return Scene(tmp_path, program, preload, content)


def check_what_it_gave(gave: dict[str, int]) -> None:
    assert gave == {
        "cuFileGetVersion": 0,
        "cuFileDriverOpen": 0,
        "cuFileHandleRegister": 0,
        "cuFileBufRegister": 0,
        "inside_a_page": 1000,
        "past_the_end": 4096,
        "behind_the_end": 0,
        "all": NBYTES,
        "write": NBYTES // 2,
        "write_inside_a_page": 1000,
        "cuFileBufDeregister": 0,
        "cuFileDriverClose_v2": 0,
    }


def check_what_it_moved(scene: Scene) -> None:
    content = scene.content
    assert scene.device_memory("inside_a_page") == zeros_around(content[4097:5097], 513)
    assert scene.device_memory("past_the_end") == zeros_around(content[-4096:], 0)
    assert scene.device_memory("behind_the_end") == bytes(NBYTES)
    assert scene.device_memory("all") == content
    written = content[: NBYTES // 2] + bytes(77) + content[513:1513]
    assert (scene.folder / "output").read_bytes() == zeros_around(written, 0)


@pytest.mark.parametrize("mode", ["direct", "buffered"])
def test_nvidias_library_moves_bytes_of_simulated_devices(mode: str, toolkit: Files, scene: Scene) -> None:
    gave = scene.play(toolkit.libcufile, mode)
    assert gave.pop("version") in (1140, 1190)
    check_what_it_gave(gave)
    check_what_it_moved(scene)


def test_the_simulated_library_gives_what_nvidias_gives(scene: Scene) -> None:
    gave = scene.play(SIMULATOR / "libcufile.so.0", "direct")
    assert gave.pop("version") > 0
    check_what_it_gave(gave)
    check_what_it_moved(scene)


@pytest.fixture
def model(tmp_path: Path) -> dict[str, bytes]:
    """A checkpoint whose tensors begin and end within pages, in model.safetensors: their bytes."""
    numbers = random.Random(20)
    tensors = {"big": numbers.randbytes(5_000_012), "middle": numbers.randbytes(700_000), "small": numbers.randbytes(4)}
    arrays = {name: np.frombuffer(content, dtype=np.float32) for name, content in tensors.items()}
    penstock.save(arrays, tmp_path / "model.safetensors")
    (tmp_path / "device").mkdir()
    return tensors


def move(folder: Path, libcufile: Path, preload: Path, root: Path) -> list[tuple[int, str]]:
    """Loads to a device and saves from there: how many bytes went by cuFile, and what is said of it, for each of both.

    `root` is where penstock looks for /proc.
    """
    if not DEVICE_PROGRAM.exists():
        pytest.skip("the library is not built in build/release (`make test STAGES=release` does)")
    variables = {
        "PENSTOCK_LIBCUDA": str(SIMULATOR / "libcuda.so.1"),
        "PENSTOCK_LIBCUFILE": str(libcufile),
        "PENSTOCK_GDS_ROOT": str(root),
    }
    command = [str(DEVICE_PROGRAM), "model.safetensors", "device", "saved.safetensors"]
    done = run_with_udev(command, folder, preload, SIMULATOR, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    told = [line.partition(" bytes by cuFile: ") for line in done.stdout.splitlines()]
    return [(int(nbytes), reason) for nbytes, _, reason in told]


def check_that_all_is_there(folder: Path, model: dict[str, bytes]) -> None:
    assert {path.name: path.read_bytes() for path in (folder / "device").iterdir()} == model
    saved = penstock.load(folder / "saved.safetensors", framework="numpy")
    assert {name: array.tobytes() for name, array in saved.items()} == model


def test_penstock_loads_and_saves_by_nvidias_library(
    toolkit: Files, preload: Path, tmp_path: Path, model: dict[str, bytes]
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "modules").touch()
    moved = move(tmp_path, toolkit.libcufile, preload, tmp_path)
    assert [said.partition(";")[0] for _, said in moved] == ["used", "used"]
    for nbytes, _ in moved:
        assert nbytes % 4096 == 0
        assert 5_600_000 < nbytes < sum(map(len, model.values()))
    check_that_all_is_there(tmp_path, model)


def test_penstock_does_not_ask_a_library_that_would_wait_for_ever(
    toolkit: Files, preload: Path, tmp_path: Path, model: dict[str, bytes]
) -> None:
    said = "/proc/modules is missing, and cuFile waits for it without end"
    assert move(tmp_path, toolkit.libcufile, preload, tmp_path) == [(0, said), (0, said)]
    check_that_all_is_there(tmp_path, model)
