"""The sync of a directory that fails, when the new file has its name already: the error says so."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import textwrap
from pathlib import Path

import helpers
import penstock
import pytest
from penstock import _steps

IN_PLACE = "is in place under its name, but may not survive a power cut"

# fsync of directories fails; of files it works.
FAILING_FSYNC = r"""
    #define _GNU_SOURCE
    #include <errno.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #include <unistd.h>

    int fsync(int fd) {
      struct stat status;
      if (fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)) {
        errno = EIO;
        return -1;
      }
      return (int)syscall(SYS_fsync, fd);
    }
"""


@pytest.fixture(scope="module")
def failing_fsync(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a failing fsync with")
    library = tmp_path_factory.mktemp("preload") / "fsync.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(library), "-x", "c", "-"]
    subprocess.run(command, input=textwrap.dedent(FAILING_FSYNC), text=True, check=True)
    return library


SAVES = {
    "file": "penstock.save(state, folder / 'm.safetensors')",
    "over_a_file": "penstock.save(state, folder / 'old.safetensors')",
    "async": "penstock.save_async(state, folder / 'm.safetensors').wait()",
    "converted": "penstock.convert(folder / 'old.safetensors', folder / 'm.flashpack')",
    "directory": "penstock.convert(folder / 'old.safetensors', folder / 'step', format='dcp', durable=True)",
    "step": "penstock.CheckpointManager(folder / 'run').save(1, {'m.safetensors': state})",
}


@pytest.mark.parametrize("save", SAVES)
def test_the_error_says_that_the_new_file_is_in_place(tmp_path: Path, failing_fsync: Path, save: str) -> None:
    script = f"""
        import sys
        from pathlib import Path

        import numpy as np
        import penstock

        folder = Path(sys.argv[1])
        state = {{"x": np.ones(3)}}
        penstock.save(state, folder / "old.safetensors", durable=False)
        (folder / "run").mkdir()
        try:
            {SAVES[save]}
        except penstock.errors.IoError as error:
            print(error.errno, error)
    """
    said = helpers.run_python(script, str(tmp_path), LD_PRELOAD=str(failing_fsync)).stdout
    assert said.startswith(f"{errno.EIO} {tmp_path}"), said
    assert said.count("\n") == 1
    if save in ("directory", "step"):  # their files and directories are synced first: nothing is in place then
        assert not (tmp_path / "step").exists()
        assert list((tmp_path / "run").iterdir()) == []
        return
    assert IN_PLACE in said
    targets = {"over_a_file": "old.safetensors", "converted": "m.flashpack"}
    target = tmp_path / targets.get(save, "m.safetensors")
    assert penstock.load(target, framework="numpy")["x"].tolist() == [1, 1, 1]


def test_a_step_says_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = _steps._sync

    def fail(path: object) -> None:
        if path == tmp_path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(path)  # type: ignore[arg-type]

    monkeypatch.setattr(_steps, "_sync", fail)
    with _steps.StagedDirectory(tmp_path / "step") as staged:
        (staged.path / "x").write_text("new")
        with pytest.raises(penstock.errors.IoError, match=rf"/step: {IN_PLACE}.*: Input/output error$") as caught:
            staged.commit()
    assert caught.value.errno == errno.EIO
    assert (tmp_path / "step" / "x").read_text() == "new"
