"""Files that are rewritten while tensors that came from them are in use: nothing is lost, nobody gets a signal."""

from __future__ import annotations

import io
import os
import resource
import signal
import stat
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import torch
from penstock.fastpersist import CheckpointEngine, FastFileWriter, PyFileWriter, serialization
from penstock.safetensors.torch import load_file, save_file

MIB = 2**20

LOADERS = {"load": "penstock.load", "serialization": "penstock.fastpersist.serialization.load"}

# Loads a file that the page cache holds, and saves what it loaded to the same path. In a process of its own: what goes
# wrong here is a signal.
SAVE_OVER = """
import sys, torch, penstock, penstock.fastpersist.serialization
from penstock.fastpersist import CheckpointEngine
path, load, save = sys.argv[1:]
open(path, "rb").read()
state = eval(load)(path)
if save == "torch":
    torch.save(state, path)
elif save == "open file":
    with open(path, "wb") as file:
        penstock.fastpersist.serialization.save(state, file)
elif save == "python writer":
    CheckpointEngine({"checkpoint": {"writer": {"type": "python"}}}).save(state, path)
print(float(state["w"].sum()))
"""


def make_state() -> dict[str, Any]:
    return {"w": torch.arange(MIB, dtype=torch.float32), "step": 3}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize("save", ["torch", "open file", "python writer"])
def test_what_was_loaded_can_be_saved_to_the_same_path(tmp_path: Path, load: str, save: str, zipped: bool) -> None:
    path = tmp_path / "model.pt"
    torch.save(make_state(), path, _use_new_zipfile_serialization=zipped)
    result = helpers.run_python(SAVE_OVER, str(path), LOADERS[load], save)
    assert float(result.stdout) == float(make_state()["w"].sum())
    saved = torch.load(path)
    assert torch.equal(saved["w"], make_state()["w"])
    assert saved["step"] == 3


@pytest.mark.parametrize("zipped", [True, False])
def test_a_warm_torch_file_is_copied_unless_a_mapping_is_asked_for(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "model.pt"
    torch.save(make_state(), path, _use_new_zipfile_serialization=zipped)
    path.read_bytes()
    for cache, mapped in (("auto", False), ("copy", False), ("mmap", True)):
        stats: dict[str, Any] = {}
        loaded = penstock.load(path, cache=cache, stats=stats)
        assert (stats["path"] == "mapped") == mapped, stats
        assert torch.equal(loaded["w"], make_state()["w"])


def test_cache_copy_never_maps(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.arange(MIB)}, path)
    path.read_bytes()
    stats: dict[str, Any] = {}
    assert penstock.load(path, stats=stats)["w"].numel() == MIB
    assert stats["path"] == "mapped"
    loaded = penstock.load(path, cache="copy", stats=stats)
    assert stats["path"] == "buffered"
    assert "a copy was asked for" in penstock.doctor(path, cache="copy").now.mapping
    path.write_bytes(b"")  # in place
    assert torch.equal(loaded["w"], torch.arange(MIB))


def test_a_file_that_is_open_for_writing_is_copied(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.arange(MIB)}, path)
    path.read_bytes()
    stats: dict[str, Any] = {}
    with path.open("r+b"):
        loaded = penstock.load(path, stats=stats)
    assert stats["path"] == "buffered"
    path.write_bytes(b"")
    assert torch.equal(loaded["w"], torch.arange(MIB))


def _safetensors(path: Path) -> None:
    save_file({"w": torch.zeros(MIB)}, path)


def _fast_writer(path: Path) -> None:
    with FastFileWriter(path) as writer:
        torch.save(make_state(), writer)


def _python_writer(path: Path) -> None:
    with PyFileWriter(path) as writer:
        torch.save(make_state(), writer)  # type: ignore[arg-type]


def _by_torch(path: Path) -> None:
    with torch.serialization.skip_data():
        serialization.save(make_state(), path)


def _engine(path: Path) -> None:
    CheckpointEngine().save(make_state(), path)


WRITERS = {
    "save": lambda path: penstock.save({"w": torch.zeros(MIB)}, path),
    "save_file": _safetensors,
    "flashpack": lambda path: penstock.save({"w": torch.zeros(MIB)}, path, format="flashpack"),
    "fast writer": _fast_writer,
    "python writer": _python_writer,
    "by torch": _by_torch,
    "engine": _engine,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_replaces_the_file(tmp_path: Path, writer: str) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.arange(MIB)}, path)
    os.chmod(path, 0o640)
    path.read_bytes()
    loaded = load_file(path)  # mapped
    before = path.stat().st_ino
    WRITERS[writer](path)
    assert path.stat().st_ino != before
    assert path.stat().st_mode & 0o777 == 0o640
    assert torch.equal(loaded["w"], torch.arange(MIB))
    assert os.listdir(tmp_path) == ["model.safetensors"]


@pytest.mark.parametrize("kind", ["python writer", "by torch"])
def test_python_s_writers_leave_the_old_file_when_they_fail(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")
    broken = {"w": torch.zeros(3), "x": (i for i in range(3))}
    with pytest.raises(TypeError, match="generator"):
        if kind == "python writer":
            with PyFileWriter(path) as writer:
                torch.save(broken, writer)  # type: ignore[arg-type]
        else:
            with torch.serialization.skip_data():
                serialization.save(broken, path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.pt"]


def test_a_file_that_torch_writes_for_us_is_its_own_byte_for_byte(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    with torch.serialization.skip_data():
        serialization.save(make_state(), tmp_path / "model.pt")
        torch.save(make_state(), tmp_path / "theirs" / "model.pt")
    assert (tmp_path / "model.pt").read_bytes() == (tmp_path / "theirs" / "model.pt").read_bytes()


def test_a_link_goes_on_leading_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "real.pt").write_bytes(b"old")
    (tmp_path / "link.pt").symlink_to("real.pt")
    with PyFileWriter(tmp_path / "link.pt") as writer:
        torch.save(make_state(), writer)  # type: ignore[arg-type]
    assert (tmp_path / "link.pt").is_symlink()
    assert torch.load(io.BytesIO((tmp_path / "real.pt").read_bytes()))["step"] == 3


def test_what_is_not_a_regular_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(penstock.ArgumentError, match="pipe: exists and is not a regular file; it is not replaced"):
        PyFileWriter(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        PyFileWriter(tmp_path)
    with pytest.raises(FileNotFoundError):
        PyFileWriter(tmp_path / "missing" / "model.pt")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_name_of_the_greatest_length_works(tmp_path: Path) -> None:
    path = tmp_path / ("\N{CJK UNIFIED IDEOGRAPH-6A21}" * 84 + ".p")
    with PyFileWriter(path) as writer:
        torch.save(make_state(), writer)  # type: ignore[arg-type]
    assert torch.load(path)["step"] == 3


def test_a_close_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    writer = PyFileWriter(path)
    writer.write(b"x" * 1000)  # in Python's buffer
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
        with pytest.raises(OSError, match="File too large"):
            writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.pt"]
