"""remove_leftovers and `penstock doctor --clean`: what killed saves left goes, and nothing else does."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import penstock
import pytest
from penstock._steps import StagedDirectory

TOKEN = "0123456789abcdef"


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def leave(folder: Path) -> set[str]:
    """What three killed saves leave: a file, a step, and a set whose shards have names and whose index has none."""
    temporary, step = f".m.safetensors.{TOKEN}.tmp", f".step-00000003.saving-{TOKEN}"
    (folder / temporary).write_bytes(b"half")
    (folder / step).mkdir()
    (folder / step / "model.safetensors").write_bytes(b"half")
    shard = "s-00001-of-00002.safetensors"
    (folder / shard).write_bytes(b"whole")
    status = (folder / shard).stat()
    entry = f"{status.st_ino} {status.st_mtime_ns} {len(shard)} {shard}"
    journal = f"penstock set 1\nindex 1 1 24 s.safetensors.index.json\nappear {entry}\nend\n"
    (folder / ".s.safetensors.saving").write_text(journal)
    return {temporary, step, shard, ".s.safetensors.saving"}


def test_what_killed_saves_left_is_removed_and_named(tmp_path: Path) -> None:
    penstock.save({"x": np.ones(3)}, tmp_path / "m.safetensors")
    left = leave(tmp_path)
    gone = penstock.remove_leftovers(tmp_path)
    assert {Path(each.path).name for each in gone} == left
    assert not any(each.restored for each in gone)
    assert names_in(tmp_path) == ["m.safetensors"]
    assert penstock.remove_leftovers(tmp_path) == []


def test_what_was_put_aside_has_its_name_again(tmp_path: Path) -> None:
    aside = tmp_path / f".step.replaced-{TOKEN}"
    aside.mkdir()
    (aside / "x").write_text("old")
    assert penstock.remove_leftovers(tmp_path) == [(str(aside), True)]
    assert (tmp_path / "step" / "x").read_text() == "old"
    other = tmp_path / f".step.replaced-{TOKEN}"
    other.mkdir()  # a newer one took its place
    assert penstock.remove_leftovers(tmp_path) == [(str(other), False)]
    assert names_in(tmp_path) == ["step"]


def test_what_a_live_saver_is_at_work_on_stays(tmp_path: Path) -> None:
    leave(tmp_path)
    with (
        open(tmp_path / f".m.safetensors.{TOKEN}.tmp") as temporary,
        open(tmp_path / ".s.safetensors.saving") as journal,
    ):
        fcntl.flock(temporary, fcntl.LOCK_SH)
        fcntl.flock(journal, fcntl.LOCK_EX)
        step = os.open(tmp_path / f".step-00000003.saving-{TOKEN}", os.O_RDONLY)
        fcntl.flock(step, fcntl.LOCK_SH)
        before = names_in(tmp_path)
        assert penstock.remove_leftovers(tmp_path) == []
        assert names_in(tmp_path) == before
        os.close(step)
    with StagedDirectory(tmp_path / "new") as staged:
        gone = {Path(each.path).name for each in penstock.remove_leftovers(tmp_path)}
        assert len(gone) == 4
        assert staged.path.name not in gone
        assert names_in(tmp_path) == [staged.path.name]


def test_what_no_saver_made_stays(tmp_path: Path) -> None:
    (tmp_path / ".notes.saving").write_text("mine")
    (tmp_path / ".empty.saving").touch()
    (tmp_path / ".m.safetensors.tmp").touch()
    (tmp_path / f".m.{TOKEN.upper()}.tmp").touch()
    (tmp_path / f".m.{TOKEN[:-1]}.tmp").touch()
    (tmp_path / ".step.saving").mkdir()
    (tmp_path / f".step.saved-{TOKEN}").mkdir()
    (tmp_path / f".file.saving-{TOKEN}").touch()  # a file under a directory's name
    (tmp_path / f".directory.{TOKEN}.tmp").mkdir()  # and the other way round
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").touch()
    (tmp_path / f".link.saving-{TOKEN}").symlink_to("elsewhere")
    (tmp_path / f".link.{TOKEN}.tmp").symlink_to("elsewhere/x")
    before = names_in(tmp_path)
    assert penstock.remove_leftovers(tmp_path) == []
    assert names_in(tmp_path) == before
    assert (tmp_path / "elsewhere" / "x").exists()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(penstock.errors.NotFoundError, match="missing"):
        penstock.remove_leftovers(tmp_path / "missing")


def test_any_save_into_the_directory_removes_the_files_of_the_dead(tmp_path: Path) -> None:
    dead = tmp_path / f".other.pt.{TOKEN}.tmp"
    dead.write_bytes(b"half")
    penstock.save({"x": np.ones(3)}, tmp_path / "m.safetensors")
    assert names_in(tmp_path) == ["m.safetensors"]
    dead.write_bytes(b"half")
    penstock.seal(tmp_path / "m.safetensors")
    assert names_in(tmp_path) == ["m.safetensors", "m.safetensors.seal.json"]


def test_a_save_has_the_space_that_a_dead_one_held(tmp_path: Path) -> None:
    """The leftovers go before the space is reserved, not when all is written."""
    from helpers import mounted_disk

    with mounted_disk(tmp_path / "disk", "2m") as disk:
        state = {"x": np.zeros(600_000, np.uint8)}
        penstock.save(state, disk / "m.safetensors")
        (disk / f".m.safetensors.{TOKEN}.tmp").write_bytes(bytes(900_000))
        penstock.save(state, disk / "m.safetensors")
        assert "m.safetensors" in names_in(disk)
        assert not [name for name in names_in(disk) if name.endswith(".tmp")]


def run_doctor(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "doctor", "--clean", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_says_what_it_removed(tmp_path: Path) -> None:
    left = leave(tmp_path)
    done = run_doctor(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"removed {tmp_path / name}" for name in sorted(left)]
    assert names_in(tmp_path) == []
    assert run_doctor(tmp_path).stdout == f"{tmp_path}: no leftovers of killed saves\n"
    assert run_doctor(tmp_path, "--json").stdout == f'{{"path":"{tmp_path}","leftovers":[]}}\n'
