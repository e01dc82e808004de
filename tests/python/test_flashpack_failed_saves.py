"""Saves of FlashPack files that don't end well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import helpers
import penstock
import penstock.flashpack as flashpack
import pytest
import torch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.flashpack"


def test_a_killed_save_leaves_the_old_file(path: Path) -> None:
    flashpack.pack_to_file({"x": torch.ones(3)}, path)
    before = path.read_bytes()
    script = """
        import os, signal, sys, torch
        from penstock.flashpack import pack_to_file

        def stop(done, total):
            if done > 2**20:
                os.kill(os.getpid(), signal.SIGKILL)

        pack_to_file({f"t{i}": torch.ones(2**23) for i in range(4)}, sys.argv[1], torch.float16, progress=stop)
        print("saved")
    """
    result = helpers.run_python(script, str(path), check=False)
    assert (result.returncode, result.stdout) == (-signal.SIGKILL, "")
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_saves_killed_at_any_moment_leave_a_whole_file(path: Path) -> None:
    """A process that saves one file over the other is killed after a while."""
    script = textwrap.dedent("""
        import sys, torch
        from penstock.flashpack import pack_to_file
        states = [{"x": torch.full((2**20,), value)} for value in (1.0, 2.0)]
        pack_to_file(states[0], sys.argv[1])
        print("begun", flush=True)
        for number in range(10**6):
            pack_to_file(states[number % 2], sys.argv[1])
    """)
    for milliseconds in (3, 26):
        saver = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
        assert saver.stdout is not None
        assert saver.stdout.readline() == b"begun\n"
        time.sleep(milliseconds / 1000)
        saver.kill()
        saver.communicate()
        values = flashpack.revert_from_file(path)["x"].unique().tolist()
        assert values in ([1.0], [2.0])
        assert os.listdir(path.parent) == [path.name]


def test_a_full_disk_leaves_the_old_file(path: Path) -> None:
    """The limit on a file's size stands in for a quota."""
    script = """
        import os, resource, sys, torch, penstock
        from penstock.flashpack import pack_to_file
        path = sys.argv[1]
        pack_to_file({"x": torch.ones(3)}, path)
        before = open(path, "rb").read()
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        for dtype in (None, torch.float16, torch.float64):
            try:
                pack_to_file({"x": torch.ones(2**20, dtype=torch.int8), "y": torch.ones(2**20)}, path, dtype)
            except penstock.Error as error:
                print(isinstance(error, OSError), len(str(error).splitlines()), os.path.dirname(path) in str(error))
        print(os.listdir(os.path.dirname(path)), open(path, "rb").read() == before)
    """
    result = helpers.run_python(script, str(path))
    assert result.stdout.splitlines() == ["True 1 True"] * 3 + ["['model.flashpack'] True"]


def test_a_small_disk_leaves_the_old_file(tmp_path: Path) -> None:
    with helpers.mounted_disk(tmp_path / "disk", "2m") as folder:
        path = folder / "x.flashpack"
        flashpack.pack_to_file({"x": torch.ones(1)}, path)
        before = path.read_bytes()
        for target in (None, torch.float64):
            with pytest.raises(penstock.NoSpaceError, match=str(folder)) as caught:
                flashpack.pack_to_file({"x": torch.ones(2**20)}, path, target)
            assert caught.value.errno == 28
            assert os.listdir(folder) == [path.name]
            assert path.read_bytes() == before
