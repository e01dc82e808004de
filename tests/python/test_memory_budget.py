"""One budget for all of the host's memory, in real cgroups of 512 MiB and by name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import penstock
import pytest
import torch
from memory_steps import make

LIMIT = 512 << 20
STEPS = Path(__file__).with_name("memory_steps.py")
ROOTS = {Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes", Path("/sys/fs/cgroup"): "memory.max"}


def make_group() -> Path | None:
    """A memory cgroup of version 1 or 2 with the limit; nothing where the system allows none."""
    for root, limit in ROOTS.items():
        try:
            group = Path(tempfile.mkdtemp(prefix="penstock-", dir=root))
        except OSError:
            continue
        try:
            (group / limit).write_text(str(LIMIT))
            return group
        except OSError:
            group.rmdir()
    return None


@pytest.fixture
def group() -> Iterator[Path]:
    made = make_group()
    if made is None:
        pytest.skip("no memory cgroup can be made here: that takes root, and cgroups that are not read-only")
    yield made
    made.rmdir()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """2 GiB, as a file and as a set. Not in the page cache, or a default load would map it."""
    folder = tmp_path_factory.mktemp("checkpoint")
    make(folder)
    yield folder
    shutil.rmtree(folder)


def drop_cache(folder: Path) -> None:
    for path in folder.rglob("*.safetensors"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_step(step: str, folder: Path, group: Path) -> subprocess.CompletedProcess[str]:
    enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    command = ["sh", "-c", enter, "sh", sys.executable, str(STEPS), step, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


# What a step writes goes with its folder; the checkpoint itself is linked into it.
@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Iterator[Path]:
    drop_cache(checkpoint)
    here = Path(tempfile.mkdtemp(dir=checkpoint.parent))
    shutil.copytree(checkpoint, here / "of", copy_function=os.link)
    yield here / "of"
    shutil.rmtree(here)


@pytest.mark.parametrize(
    "step",
    [
        "stream",
        "stream_direct",
        "stream_in_a_budget",
        "load_with_the_other_half_elsewhere",
        "load_mapped",
        "convert",
        "verify",
        "save",
        "save_of_a_part",
        "manager",
        "safetensors",
        "fastsafetensors",
        "flashpack",
        "fastpersist",
        "dcp",
        "dcp_convert",
        "save_pretrained",
        "slices_that_are_kept",
        "small_slices_that_are_kept",
        "accelerated_files",
    ],
)
def test_2_gib_pass_through_a_cgroup_of_512_mib(step: str, folder: Path, group: Path) -> None:
    done = run_step(step, folder, group)
    assert done.returncode == 0, f"{done.returncode} {done.stderr[-2000:]}"


def test_a_load_that_cannot_fit_says_so_before_it_starts(folder: Path, group: Path) -> None:
    done = run_step("load", folder, group)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        rf"{re.escape(str(folder))}/model.safetensors: a load takes 2.0 GiB of memory and [0-9.]+ MiB of blocks, "
        r"and [0-9.]+ MiB are left of the 512.0 MiB of this process's cgroup: "
        r"a stream, a mapped load or a part of the tensors takes less",
        done.stdout.strip(),
    )


def test_a_snapshot_that_cannot_fit_is_not_taken_and_the_save_goes_on(folder: Path, group: Path) -> None:
    done = run_step("save_async", folder, group)
    assert done.returncode == 0, f"{done.returncode} {done.stderr[-2000:]}"
    assert "no snapshot: it takes 2.0 GiB, and " in done.stdout


def test_a_copy_for_a_background_save_of_dcp_that_cannot_fit_says_so(folder: Path, group: Path) -> None:
    done = run_step("dcp_async", folder, group)
    assert done.returncode == 0, f"{done.returncode} {done.stderr[-2000:]}"
    assert re.search(
        r"a copy takes 2\.0 GiB of memory, and [0-9.]+ MiB are left of the 512\.0 MiB of this process's cgroup",
        done.stdout,
    )


# ---- By name --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(path: Path) -> Path:
    penstock.save({f"t{i}": torch.full((1 << 20,), float(i)) for i in range(16)}, path)  # 64 MiB
    return path


def test_a_budget_bounds_a_load(small: Path) -> None:
    with pytest.raises(penstock.OutOfMemoryError, match=r"model\.safetensors: a load takes 64\.0 MiB .* 50\.0 MiB"):
        penstock.load(small, cache="copy", memory_budget="50MiB")
    assert len(penstock.load(small, cache="copy", memory_budget="80MiB")) == 16
    assert len(penstock.load(small, cache="mmap", memory_budget="1MiB")) == 16


def test_a_budget_of_the_environment_counts_where_none_is_named(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_MEMORY_BUDGET", "50MiB")
    with pytest.raises(penstock.OutOfMemoryError, match="PENSTOCK_MEMORY_BUDGET allows 50.0 MiB"):
        penstock.load(small, cache="direct")
    assert len(penstock.load(small, cache="direct", memory_budget="1G")) == 16


def test_a_narrower_dtype_needs_less(small: Path) -> None:
    loaded = penstock.load(small, cache="copy", dtype=torch.float16, memory_budget="50MiB")
    assert loaded["t3"].dtype == torch.float16


def test_a_stream_reads_ahead_within_its_budget(small: Path) -> None:
    stats = penstock.Stats()
    pool = penstock.MemoryPool(max_kept_bytes=0)
    for name, tensor in penstock.stream(small, cache="copy", memory_budget="20MiB", pool=pool, stats=stats):
        assert tensor[0].item() == float(name[1:])
        assert pool.used_bytes <= 20 << 20
        del tensor
    assert stats.bytes == 64 << 20


def test_a_tensor_that_is_larger_than_the_budget_of_its_stream_is_named(small: Path) -> None:
    with pytest.raises(penstock.OutOfMemoryError, match='a stream\'s tensor "t0" takes 4.0 MiB'):
        list(penstock.stream(small, cache="copy", memory_budget="2MiB"))


def test_a_snapshot_has_to_fit_into_the_budget(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    job = penstock.save_async(tensors, tmp_path / "a.safetensors", memory_budget="1KiB")
    job.staged()
    assert "no snapshot" in job.wait().reason
    assert penstock.load(tmp_path / "a.safetensors").keys() == tensors.keys()
    assert "no snapshot" not in penstock.save_async(tensors, tmp_path / "b.safetensors").wait().reason


@pytest.mark.parametrize("call", ["convert", "verify", "seal", "save", "load_into"])
def test_all_that_moves_bytes_takes_a_budget(call: str, small: Path, tmp_path: Path) -> None:
    state = penstock.load(small)
    if call == "convert":
        penstock.convert(small, tmp_path / "a.flashpack", memory_budget="2MiB")
    elif call == "verify":
        assert penstock.verify(small, memory_budget="2MiB").ok
    elif call == "seal":
        penstock.seal(small, memory_budget="2MiB")
    elif call == "save":
        penstock.save(state, tmp_path / "b.safetensors", memory_budget="2MiB")
    else:
        penstock.load_into(state, small, memory_budget="2MiB")


def test_a_budget_that_is_no_size_is_refused(small: Path) -> None:
    with pytest.raises(penstock.ArgumentError, match="is not a size"):
        penstock.load(small, memory_budget="plenty")
