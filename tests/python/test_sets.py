"""Sets of shards commit as one: saves that are killed at any moment, full disks, readers meanwhile.

docs/formats/sets.md is what these hold to. PENSTOCK_TEST_KILLS asks for more kills than the short form makes.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import penstock
import pytest
import set_saver
import tiny_models
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import AutoModel, LlamaModel

KILLS = int(os.environ.get("PENSTOCK_TEST_KILLS", "60"))
# Loading with transformers takes far longer than a save, so of many kills it sees a part.
SEEN_BY_TRANSFORMERS = 1 if KILLS <= 60 else 20

NAME = "model.safetensors"
INDEX = "model.safetensors.index.json"
JOURNAL = ".model.safetensors.saving"

MODEL = tiny_models.llama(LlamaModel)
SHAPES = {name: list(tensor.shape) for name, tensor in MODEL.state_dict().items()}
# How many files a save makes with each max_shard_size.
LIMITS = {1: None, 2: 40_000, 3: 24_000, 11: 8_000}


class Saver:
    """The process that saves and kills, see set_saver.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, set_saver.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.orders, self.answers = self.process.stdin, self.process.stdout

    def save(
        self, value: int, count: int, *, durable: bool = True, convert: bool = False, **kill: Any
    ) -> dict[str, Any]:
        order = {
            "folder": str(self.folder),
            "shapes": SHAPES,
            "value": value,
            "limit": LIMITS[count],
            "durable": durable,
            "source": str(self.folder.with_name("source.safetensors")) if convert else None,
            "kill_after": None,
            "trace": False,
            "kill_at": None,
            **kill,
        }
        print(json.dumps(order), file=self.orders, flush=True)
        answer = json.loads(self.answers.readline())
        assert answer["error"] is None, answer["error"]
        return dict(answer)

    def close(self) -> None:
        self.orders.close()
        assert self.process.wait() == 0
        self.answers.close()


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[Saver]:
    folder = tmp_path / "set"
    folder.mkdir()
    MODEL.config.save_pretrained(folder)
    saver = Saver(folder)
    yield saver
    saver.close()


def one_value(tensors: dict[str, Any]) -> int:
    """Which save tensors are of: all are there, and of one save."""
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == SHAPES
    values = {float(value) for tensor in tensors.values() for value in (tensor.min(), tensor.max())}
    assert len(values) == 1, values
    return int(values.pop())


def value_for_us(folder: Path) -> int:
    return one_value(penstock.load(folder, framework="numpy"))


def value_for_transformers(folder: Path) -> int:
    model, notes = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert (list(notes["missing_keys"]), list(notes["unexpected_keys"])) == ([], [])
    return one_value({name: tensor.detach().float() for name, tensor in model.state_dict().items()})


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def check_alone(folder: Path, count: int) -> None:
    """The set is all that the directory holds, hidden files included."""
    expected = ["config.json"]
    if count == 1:
        expected.append(NAME)
    else:
        shards = set(json.loads((folder / INDEX).read_text())["weight_map"].values())
        assert len(shards) == count
        expected += [INDEX, *shards]
    assert names_in(folder) == sorted(expected)


def test_sizes_give_the_shards_that_these_tests_think_of(saver: Saver) -> None:
    for value, count in enumerate(LIMITS, 1):
        saver.save(value, count)
        check_alone(saver.folder, count)
        assert value_for_us(saver.folder) == value_for_transformers(saver.folder) == value


def test_a_save_killed_at_any_moment_leaves_the_old_set_or_the_new_one(saver: Saver) -> None:
    folder = saver.folder
    choose = random.Random(os.environ.get("PENSTOCK_TEST_SEED", "sets"))
    value = old = 1
    took = [saver.save(value, 3)["seconds"] for _ in range(3)]
    seen: Counter[str] = Counter()
    for kill in range(KILLS):
        count, durable, convert = choose.choice(list(LIMITS)), choose.random() < 0.7, choose.random() < 0.2
        value += 1
        moment = choose.uniform(0, 1.1 * sorted(took)[1])
        killed = saver.save(value, count, durable=durable, convert=convert, kill_after=moment)["killed"]
        what = f"kill {kill}: {count} files, durable={durable}, convert={convert}, {names_in(folder)}"
        found = value_for_us(folder)
        assert found in ((old, value) if killed else (value,)), what
        if kill % SEEN_BY_TRANSFORMERS == 0:
            theirs = value_for_transformers(folder)
            assert theirs in ((old, value) if killed else (value,)), what
            seen["by transformers"] += 1
        seen["killed" if killed else "ended"] += 1
        seen["killed, the new set is there"] += killed and found == value
        seen["killed, with a journal"] += killed and (folder / JOURNAL).exists()
        value, count = value + 1, choose.choice(list(LIMITS))
        took = [*took[-2:], saver.save(value, count, durable=choose.random() < 0.7)["seconds"]]
        check_alone(folder, count)
        old = value
    print(dict(seen))
    assert seen["killed"] > KILLS / 4
    assert value_for_us(folder) == value_for_transformers(folder) == value


def require_traces(saver: Saver) -> None:
    if not set_saver.CALLS:
        pytest.skip("the numbers of system calls are known for x86-64 and arm64 only")
    try:
        saver.save(1, 1, trace=True)
    except AssertionError as error:
        if "ptrace" not in str(error) and "ended with" not in str(error):
            raise
        pytest.skip(f"processes can't be traced here: {error}")


@pytest.mark.parametrize(("before", "after"), [(2, 3), (1, 2), (3, 1), (2, 2)])
def test_a_save_killed_after_any_call_leaves_the_old_set_or_the_new_one(saver: Saver, before: int, after: int) -> None:
    """Every call that creates, writes, syncs, names or removes a file, and each is a step of the protocol."""
    require_traces(saver)
    folder = saver.folder
    found = []
    for kill_at in itertools.count(1):
        saver.save(1, before, durable=False)
        answer = saver.save(2, after, trace=True, kill_at=kill_at)
        ours, theirs = value_for_us(folder), value_for_transformers(folder)
        found.append((ours, theirs))
        assert {ours, theirs} <= {1, 2}, (answer["calls"], names_in(folder))
        saver.save(3, after, durable=False)
        check_alone(folder, after)
        if not answer["killed"]:
            break
    assert found[0] == (1, 1)
    assert found[-1] == (2, 2)
    # Once the new set is there it stays.
    assert found == sorted(found)


def steps_of(calls: list[str]) -> list[str]:
    """The calls after the journal was made, each once where it is repeated."""
    after = calls[len(calls) - calls[::-1].index("create") :]
    named = ["name" if call in ("link", "rename") else call for call in after if call not in ("flock", "chmod")]
    return [call for call, _ in itertools.groupby(named)]


def test_what_a_power_cut_may_not_reorder_is_synced_between(saver: Saver) -> None:
    require_traces(saver)
    saver.save(1, 2)
    written = ["pwrite", "ftruncate", "fsync", "pwrite", "fsync"]  # the index, and the journal
    # The shards, the index, and then what only the old set needed goes.
    shards = steps_of(saver.save(2, 3, trace=True)["calls"])
    assert shards == [*written, "name", "fsync", "name", "fsync", "unlink"]
    # The file, the index that names it; the old shards and the index go, and that is durable before the journal goes.
    single = steps_of(saver.save(3, 1, trace=True)["calls"])
    assert single == [*written, "name", "fsync", "name", "fsync", "unlink", "fsync", "unlink"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with helpers.mounted_disk(tmp_path / "disk", "1m") as folder:
        yield folder


def free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def error_of(action: Callable[[], None]) -> penstock.NoSpaceError | None:
    try:
        action()
    except penstock.NoSpaceError as error:
        return error
    return None


@pytest.mark.parametrize("convert", [False, True])
def test_a_disk_that_is_full_at_any_point_leaves_the_old_set(small_disk: Path, tmp_path: Path, convert: bool) -> None:
    shapes = {f"t{i}": (4096,) for i in range(3)}
    state = {name: np.full(shape, 2, np.float32) for name, shape in shapes.items()}
    target, source = small_disk / NAME, tmp_path / "source.safetensors"
    penstock.save(state, source)

    def save_new() -> None:
        if convert:
            penstock.convert(source, target, max_shard_size=16384, overwrite=True)
        else:
            penstock.save(state, target, max_shard_size=16384)

    penstock.save({name: np.ones_like(array) for name, array in state.items()}, target, max_shard_size=32768)
    before = names_in(small_disk)
    filler = small_disk / "filler"
    page = os.statvfs(small_disk).f_frsize
    for pages in range(30):
        filler.unlink(missing_ok=True)
        filler.write_bytes(bytes(free_bytes(small_disk) - pages * page))
        failure = error_of(save_new)
        if failure is None:
            break
        assert str(small_disk) in str(failure)
        assert names_in(small_disk) == sorted([*before, "filler"])
        assert {int(tensor[0]) for tensor in penstock.load(small_disk, framework="numpy").values()} == {1}
    # Three shards of five pages, an index and a journal; the space of the old set counts only when it is gone.
    assert pages == 17
    loaded = penstock.load(small_disk, framework="numpy")
    assert {int(tensor[0]) for tensor in loaded.values()} == {2}
    assert len(names_in(small_disk)) == 5


def test_who_opened_the_old_set_keeps_it(tmp_path: Path) -> None:
    old, new = ({f"t{i}": torch.full((1000,), value) for i in range(3)} for value in (1.0, 2.0))
    penstock.save(old, tmp_path / NAME, max_shard_size=4000)
    with penstock.open(tmp_path) as reader:
        penstock.save(new, tmp_path / NAME, max_shard_size=4000)
        penstock.save(new, tmp_path / NAME)
        assert names_in(tmp_path) == [NAME]
        assert all(torch.equal(reader[name].load(), old[name]) for name in old)
    assert all(torch.equal(tensor, new[name]) for name, tensor in penstock.load(tmp_path).items())


def test_links_of_a_cache_are_replaced_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    """As in the cache of Hugging Face: files of a snapshot are links to blobs, the index too."""
    old, new = ({f"t{i}": torch.full((1000,), value) for i in range(3)} for value in (1.0, 2.0))
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    penstock.save(old, blobs / NAME, max_shard_size=4000)
    for number, name in enumerate(names_in(blobs)):
        (blobs / name).rename(blobs / f"{number:064x}")
        (snapshot / name).symlink_to(f"../../blobs/{number:064x}")
    before = {name: (blobs / name).read_bytes() for name in names_in(blobs)}
    assert torch.equal(penstock.load(snapshot)["t1"], old["t1"])
    penstock.save(new, snapshot / NAME, max_shard_size=8000)
    assert not any((snapshot / name).is_symlink() for name in names_in(snapshot))
    assert len(names_in(snapshot)) == 3
    assert all(torch.equal(tensor, new[name]) for name, tensor in penstock.load(snapshot).items())
    assert {name: (blobs / name).read_bytes() for name in names_in(blobs)} == before
