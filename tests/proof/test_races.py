"""Directories that others write to: permissions, names, links and journals that somebody left there."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import penstock
import penstock.flashpack._torch_files
import pytest
import torch

TENSORS = {"x": torch.arange(1000.0), "y": torch.arange(999.0)}
SUFFIXES = ("safetensors", "pt", "flashpack")
SOMEBODY = 65534


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def private_umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_new_files_have_what_the_umask_leaves(suffix: str, tmp_path: Path, private_umask: None) -> None:
    path = tmp_path / f"m.{suffix}"
    penstock.save(TENSORS, path)
    assert mode_of(path) == 0o640
    penstock.save_async(TENSORS, tmp_path / f"n.{suffix}").wait()
    assert mode_of(tmp_path / f"n.{suffix}") == 0o640
    penstock.seal(path)
    assert mode_of(tmp_path / f"m.{suffix}.seal.json") == 0o640


def test_shards_and_their_index_have_what_the_umask_leaves(tmp_path: Path, private_umask: None) -> None:
    penstock.save(TENSORS, tmp_path / "m.safetensors", max_shard_size=4000)
    assert len(os.listdir(tmp_path)) == 3
    assert {mode_of(path) for path in tmp_path.iterdir()} == {0o640}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
def test_a_file_that_replaces_another_keeps_its_permissions(suffix: str, mode: int, tmp_path: Path) -> None:
    path = tmp_path / f"m.{suffix}"
    penstock.save(TENSORS, path)
    path.chmod(mode)
    penstock.save(TENSORS, path)
    assert mode_of(path) == mode


def test_set_user_id_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"")
    path.chmod(0o6755)
    penstock.save(TENSORS, path)
    assert mode_of(path) == 0o755


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("files of other users need root")


def test_somebody_elses_open_file_does_not_open_ours(tmp_path: Path, private_umask: None) -> None:
    needs_root()
    for suffix in SUFFIXES:
        path = tmp_path / f"m.{suffix}"
        path.write_bytes(b"")
        path.chmod(0o777)
        os.chown(path, SOMEBODY, SOMEBODY)
        penstock.save(TENSORS, path)
        assert mode_of(path) == 0o640
        assert path.stat().st_uid == 0
        path.chmod(0o600)
        os.chown(path, SOMEBODY, SOMEBODY)
        penstock.save(TENSORS, path)
        assert mode_of(path) == 0o600


def test_flashpacks_torch_files_keep_permissions_in_the_same_way(tmp_path: Path, private_umask: None) -> None:
    path = tmp_path / "m.bin"
    penstock.flashpack._torch_files.save_torch_file(TENSORS, str(path))
    assert mode_of(path) == 0o640
    path.chmod(0o4666)
    penstock.flashpack._torch_files.save_torch_file(TENSORS, str(path))
    assert mode_of(path) == 0o666
    if os.geteuid() == 0:
        os.chown(path, SOMEBODY, SOMEBODY)
        penstock.flashpack._torch_files.save_torch_file(TENSORS, str(path))
        assert mode_of(path) == 0o640


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_link_in_its_place_is_replaced_and_not_followed(suffix: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    path = tmp_path / f"m.{suffix}"
    path.symlink_to(victim)
    penstock.save(TENSORS, path)
    assert not path.is_symlink()
    assert victim.read_bytes() == b"precious"
    assert torch.equal(penstock.load(path)["x"], TENSORS["x"])


def test_a_link_that_appears_between_the_steps_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    path = tmp_path / "m.safetensors"

    def swap(done: int, total: int) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(victim)

    penstock.save({"x": torch.zeros(1 << 20)}, path, progress=swap)
    assert not path.is_symlink()
    assert victim.read_bytes() == b"precious"


def test_a_directory_that_is_swapped_between_the_steps_is_the_one_that_was_opened(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    elsewhere = tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    swapped = threading.Event()

    def swap(done: int, total: int) -> None:
        if not swapped.is_set():
            swapped.set()
            folder.rename(tmp_path / "moved")
            folder.symlink_to(elsewhere)

    penstock.save({"x": torch.zeros(1 << 20)}, folder / "m.safetensors", progress=swap, durable=False)
    assert swapped.is_set()
    assert os.listdir(elsewhere) == []
    assert os.listdir(tmp_path / "moved") == ["m.safetensors"]


def watched_names(tmp_path: Path, filesystem_has_tmpfile: bool) -> set[str]:
    """Names that come and go while an existing file is replaced, as strace has them."""
    script = "import penstock, torch, sys\nfor i in range(3): penstock.save({'x': torch.ones(9)}, sys.argv[1])\n"
    path = tmp_path / "m.safetensors"
    command = ["strace", "-f", "-qq", "-e", "trace=linkat,openat,renameat,renameat2", "-o", str(tmp_path / "trace")]
    done = subprocess.run(
        [*command, sys.executable, "-c", script, str(path)], check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"strace can't trace here: {done.stderr.strip()[:100]}")
    return set(re.findall(r'"(\.m\.safetensors\.[^"]*\.tmp)"', (tmp_path / "trace").read_text()))


def test_temporary_names_are_random_and_new_each_time(tmp_path: Path) -> None:
    try:
        subprocess.run(["strace", "-V"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("strace is not there")
    names = watched_names(tmp_path, filesystem_has_tmpfile=True)
    assert len(names) >= 2  # the second and the third save replace a file
    assert all(re.fullmatch(r"\.m\.safetensors\.[0-9a-f]{16}\.tmp", name) for name in names)
    for line in (tmp_path / "trace").read_text().splitlines():
        if "O_CREAT" in line and "m.safetensors" in line and ".saving" not in line:
            assert "O_EXCL" in line


def save_set_of(folder: Path) -> Path:
    path = folder / "m.safetensors"
    penstock.save(TENSORS, path, max_shard_size=4000)
    return path


def forged_journal(folder: Path, victim: Path) -> Path:
    """Says that a dead save was to remove the victim: what the next save finishes."""
    index = (folder / "m.safetensors.index.json").stat()
    gone = victim.stat()
    text = f"penstock set 1\nindex {index.st_ino} {index.st_mtime_ns} 24 m.safetensors.index.json\n"
    text += f"vanish {gone.st_ino} {gone.st_mtime_ns} {len(victim.name)} {victim.name}\nend\n"
    journal = folder / ".m.safetensors.saving"
    journal.write_text(text)
    return journal


@pytest.mark.parametrize("kind", ["ours", "somebody else's", "a second name"])
def test_a_journal_of_somebody_else_removes_nothing_of_ours(kind: str, tmp_path: Path) -> None:
    needs_root()
    tmp_path.chmod(0o1777)
    save_set_of(tmp_path)
    victim = tmp_path / "victim.safetensors"
    penstock.save({"v": torch.ones(3)}, victim)
    journal = forged_journal(tmp_path, victim)
    if kind == "somebody else's":
        os.chown(journal, SOMEBODY, SOMEBODY)
    elif kind == "a second name":
        os.link(journal, tmp_path / "kept")
        before = journal.read_bytes()
    save_set_of(tmp_path)
    assert victim.exists() == (kind != "ours")
    assert not journal.exists()
    if kind == "a second name":
        assert (tmp_path / "kept").read_bytes() == before


def test_a_journal_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    save_set_of(tmp_path)
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    (tmp_path / ".m.safetensors.saving").symlink_to(victim)
    with pytest.raises(penstock.Error, match=r"m\.safetensors"):
        save_set_of(tmp_path)
    assert victim.read_bytes() == b""


def test_leftovers_that_are_links_are_left(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    link = tmp_path / ".m.safetensors.0123456789abcdef.tmp"
    link.symlink_to(victim)
    penstock.save(TENSORS, tmp_path / "m.safetensors")
    assert link.is_symlink()
    assert victim.read_bytes() == b"precious"
