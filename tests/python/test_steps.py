"""Directories that appear whole, also where their maker is killed at any line."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import penstock
import pytest
import steps_killed
from penstock import _steps
from penstock._steps import StagedDirectory, remove_dead, remove_directory
from steps_killed import NEW, OLD, seen, write

HOLDER = """
import os, sys, time
from penstock._steps import StagedDirectory
staged = StagedDirectory(sys.argv[1])
(staged.path / "a").write_text("new")
if len(sys.argv) > 2:
    child = os.fork()
    if child == 0:
        time.sleep(60)
    print(child, flush=True)
print(staged.path.name, flush=True)
sys.stdin.read()
"""


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def deaths(scenario: str, root: Path) -> list[dict[str, Any]]:
    command = [sys.executable, steps_killed.__file__, scenario, str(root)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["ended"] for each in found] == [False] * (len(found) - 1) + [True]
    assert len(found) > 10  # lines at which it was killed
    return found


def test_a_step_is_seen_when_it_is_committed_and_not_before(tmp_path: Path) -> None:
    with StagedDirectory(tmp_path / "step") as staged:
        write(staged.path, NEW)
        assert seen(tmp_path) is None
        staged.commit()
        assert seen(tmp_path) == NEW
    assert names(tmp_path) == ["step"]


@pytest.mark.usefixtures("no_leaks")
def test_an_error_abandons_what_was_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), StagedDirectory(tmp_path / "step") as staged:
        write(staged.path, NEW)
        raise ValueError("no")
    assert names(tmp_path) == []


def test_an_existing_target_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "step").mkdir()  # an empty one too, which a plain rename would replace
    with StagedDirectory(tmp_path / "step") as staged:
        write(staged.path, NEW)
        with pytest.raises(penstock.errors.IoError, match=r"/step: File exists$") as caught:
            staged.commit()
    assert caught.value.errno == errno.EEXIST
    assert seen(tmp_path) == {}


@pytest.mark.parametrize("has_exchange", [True, False])
def test_an_existing_target_is_replaced_on_request(
    tmp_path: Path, has_exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_exchange:
        monkeypatch.setattr(_steps, "_rename", lambda *_: False)
    (tmp_path / "step").mkdir(mode=0o700)
    write(tmp_path / "step", OLD)
    with StagedDirectory(tmp_path / "step") as staged:
        write(staged.path, NEW)
        staged.commit(replace=True)
    assert seen(tmp_path) == NEW
    assert names(tmp_path) == ["step"]
    assert (tmp_path / "step").stat().st_mode & 0o777 == 0o700


def test_a_file_in_the_place_of_the_target_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "step").write_text("a file")
    with StagedDirectory(tmp_path / "step") as staged, pytest.raises(penstock.errors.IoError, match="Not a directory"):
        staged.commit(replace=True)
    assert (tmp_path / "step").read_text() == "a file"


def test_everything_is_synced_before_the_rename_and_the_parent_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def record(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        synced.append((str(path.relative_to(tmp_path)), (tmp_path / "step").exists()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    with StagedDirectory(tmp_path / "step") as staged:
        write(staged.path, NEW)
        hidden = staged.path.name
        staged.commit()
    before = {f"{hidden}/a", f"{hidden}/sub/c", f"{hidden}/sub", hidden}
    assert set(synced) == {(name, False) for name in before} | {("step", True), (".", True)}


def test_a_directory_that_is_not_durable_is_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> None:
        raise AssertionError("synced")

    monkeypatch.setattr(os, "fsync", refuse)
    with StagedDirectory(tmp_path / "step", durable=False) as staged:
        write(staged.path, NEW)
        staged.commit()
    assert seen(tmp_path) == NEW


def test_a_sync_that_fails_leaves_the_old_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "step").mkdir()
    write(tmp_path / "step", OLD)
    with StagedDirectory(tmp_path / "step") as staged:
        write(staged.path, NEW)
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(penstock.errors.NoSpaceError, match=r"/step: No space left on device$"):
            staged.commit(replace=True)
    assert seen(tmp_path) == OLD
    assert names(tmp_path) == ["step"]


def test_a_missing_parent_is_named(tmp_path: Path) -> None:
    with pytest.raises(penstock.errors.NotFoundError, match=r"/missing/step: No such file or directory$"):
        StagedDirectory(tmp_path / "missing" / "step")


def test_a_directory_is_committed_once(tmp_path: Path) -> None:
    staged = StagedDirectory(tmp_path / "step")
    staged.commit()
    with pytest.raises(penstock.errors.ArgumentError, match="committed or abandoned before"):
        staged.commit()
    staged.abandon()
    assert seen(tmp_path) == {}


def test_a_relative_target_stays_where_it_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    staged = StagedDirectory("step")
    monkeypatch.chdir(tmp_path / "elsewhere")
    staged.commit()
    assert names(tmp_path) == ["elsewhere", "step"]


def test_only_directories_of_the_dead_are_removed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "step")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        hidden = holder.stdout.readline().strip()
        (tmp_path / ".git").mkdir()
        assert remove_dead(tmp_path) == []
        assert names(tmp_path) == sorted([hidden, ".git"])
        holder.kill()
    assert remove_dead(tmp_path) == [hidden]
    assert names(tmp_path) == [".git"]


def test_a_child_of_a_fork_does_not_keep_its_dead_parents_directory(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "step"), "fork"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        child, hidden = int(holder.stdout.readline()), holder.stdout.readline().strip()
        holder.kill()
    try:
        deadline = time.monotonic() + 30  # the child may not have run a line yet
        while (gone := remove_dead(tmp_path)) == [] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert gone == [hidden]
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_missing_directory_has_nobody_dead(tmp_path: Path) -> None:
    assert remove_dead(tmp_path / "missing") == []


def test_a_removed_directory_is_gone(tmp_path: Path) -> None:
    (tmp_path / "step").mkdir()
    write(tmp_path / "step", OLD)
    remove_directory(tmp_path / "step")
    assert names(tmp_path) == []
    with pytest.raises(penstock.errors.NotFoundError, match=r"/step: No such file or directory$"):
        remove_directory(tmp_path / "step")


def test_a_maker_that_is_killed_leaves_nothing_or_all(tmp_path: Path) -> None:
    found = deaths("create", tmp_path)
    assert {json.dumps(each["left"]) for each in found} == {"null", json.dumps(NEW)}
    assert all(each["recovered"] == each["left"] for each in found)
    assert all(each["names"] in ([], ["step"]) for each in found)


def test_an_exchange_that_is_killed_leaves_the_old_or_the_new_at_every_moment(tmp_path: Path) -> None:
    found = deaths("replace", tmp_path)
    assert {json.dumps(each["left"]) for each in found} == {json.dumps(OLD), json.dumps(NEW)}
    assert all(each["recovered"] == each["left"] and each["names"] == ["step"] for each in found)


def test_a_replacement_in_two_steps_that_is_killed_is_the_old_or_the_new_afterwards(tmp_path: Path) -> None:
    found = deaths("replace_in_two_steps", tmp_path)
    assert any(each["left"] is None for each in found)  # between the two
    assert {json.dumps(each["recovered"]) for each in found} == {json.dumps(OLD), json.dumps(NEW)}
    assert all(each["names"] == ["step"] for each in found)


def test_a_removal_that_is_killed_leaves_all_or_nothing(tmp_path: Path) -> None:
    found = deaths("remove", tmp_path)
    assert {json.dumps(each["left"]) for each in found} == {"null", json.dumps(OLD)}
    assert all(each["names"] == ([] if each["left"] is None else ["step"]) for each in found)


@pytest.mark.parametrize("scenario", ["abandon", "clean_up"])
def test_who_is_killed_while_it_cleans_up_leaves_the_old_one(tmp_path: Path, scenario: str) -> None:
    found = deaths(scenario, tmp_path)
    assert all(each["recovered"] == OLD and each["names"] == ["step"] for each in found)
