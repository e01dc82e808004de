"""The saves that proof/kills.py kills: of each kind what was there before, the save, and what must be found after it.

A checkpoint here is a number from which every byte of it follows, so that whoever loads one can tell which it is, and
that all of it is of that one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import penstock
import seccomp
from penstock.errors import NotFoundError

NONE, OLD, NEW, NEXT = range(4)
SMALLER, LARGER, HUGE, HUGER = range(11, 15)
SCALES = {OLD: 1.0, NEW: 1.0, NEXT: 0.7, SMALLER: 0.3, LARGER: 2.5, HUGE: 16.0, HUGER: 18.0}
LIMITS = {2: 100_000, 3: 70_000, 5: 40_000}  # max_shard_size for about so many shards

Act = Callable[[Path], object]

# What savers that were killed may leave, by name, wherever they write: docs/formats/sets.md, penstock._steps.
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_JOURNAL = re.compile(r"\..+\.saving")
_STAGED = re.compile(r"\..+\.(saving|replaced|removing)-[0-9a-f]{16}")


class LostError(Exception):
    """Neither the old checkpoint nor the new one is there, whole."""


@dataclass(frozen=True)
class Kind:
    """A kind of save. The functions get the directory that it is about."""

    row: str  # of the table
    name: str
    before: Act
    save: Act
    find: Callable[[Path], int]  # which checkpoint is there; LostError
    again: Act  # saves NEXT
    owned: Callable[[Path], set[str]]  # the names of what is there
    old: int = OLD
    new: int = NEW
    prepare: Act | None = None  # in the process that saves, before it is traced
    dies: str = ""  # of two ranks: "first", "second", "both"
    steps: bool = True  # whether it is killed at every call, and not only at random moments


def content(value: int) -> dict[str, np.ndarray]:
    """Some hundred KiB: tensors of several types, one of odd length, a small one and an empty one."""
    random = np.random.default_rng(value)
    rows = int(100 * SCALES[value])
    return {
        "layers.0": random.standard_normal((rows, 200), np.float32),
        "layers.1": random.standard_normal((rows + 7, 150), np.float32).astype(np.float16),
        "layers.2": random.integers(-99, 99, (rows, 300), np.int16),
        "odd": random.integers(0, 255, (10_001,), np.uint8),
        "small": np.array([value], np.int64),
        "empty": np.empty((0, 4), np.float32),
    }


def as_torch(value: int) -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(array) for name, array in content(value).items()}


def whole(loaded: Mapping[str, Any]) -> int:
    """Which checkpoint this is. Every element is compared."""
    value = int(np.asarray(loaded["small"])[0]) if "small" in loaded else NONE
    if value not in SCALES or set(loaded) != set(content(value)):
        raise LostError(f"checkpoint {value} with the tensors {sorted(loaded)}")
    for name, array in content(value).items():
        found = np.asarray(loaded[name])
        if found.dtype != array.dtype or not np.array_equal(found, array):
            raise LostError(f"{name} is not that of checkpoint {value}")
    return value


def names_in(folder: Path) -> set[str]:
    """All files and directories, by their paths below the folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def restored(find: Callable[[Path], int], folder: Path) -> int:
    """Where nothing swaps two directories, the old one may be under a hidden name, until it is looked for."""
    found = find(folder)
    if found == NONE and any(folder.glob(".*.replaced-*")):
        penstock.remove_leftovers(folder)
        found = find(folder)
    return found


def owned_files(target: str, folder: Path) -> set[str]:
    """The files of the checkpoint of this name: the single file, or the index and what it lists. And their seals."""
    index = folder / f"{target}.index.json"
    files = {target}
    if index.exists():
        files = {index.name, *json.loads(index.read_text())["weight_map"].values()}
    files |= {f"{name}.seal.json" for name in files}
    return {name for name in files if (folder / name).exists()}


def owned_directories(folder: Path) -> set[str]:
    """Everything without a hidden part in its path."""
    return {name for name in names_in(folder) if not any(part.startswith(".") for part in Path(name).parts)}


def may_be_left(folder: Path, name: str) -> bool:
    """Whether the protocol lets a killed saver leave this."""
    top = Path(name).parts[0]
    if (folder / f".{name}.saving").exists():
        return True  # a single file beside an index that does not name it yet
    if _TEMPORARY.fullmatch(top) or _JOURNAL.fullmatch(top) or _STAGED.fullmatch(top):
        return True
    return any(f" {name}\n" in path.read_text(errors="replace") for path in folder.glob(".*.saving"))


def kinds() -> Iterator[Kind]:
    """All kinds, those that need no torch first."""
    yield from _files_of_arrays()
    yield from _sets()
    yield from _conversions()
    yield from _torch_files()
    yield from _drop_ins()
    yield from _directories()
    yield from _ranks()


def nothing(folder: Path) -> None:
    """The directory is empty."""


def saver(target: str, value: int, **arguments: Any) -> Act:
    return lambda folder: penstock.save(content(value), folder / target, **arguments)


def found_at(target: str, folder: Path) -> int:
    """What penstock finds, and whoever else reads such a file."""
    path = folder / target
    try:
        found = whole(penstock.load(path, framework="numpy"))
    except NotFoundError:
        return NONE
    if path.suffix == ".safetensors" and path.is_file():
        from safetensors.numpy import load_file

        if whole(load_file(path)) != found:
            raise LostError("safetensors finds another one")
    return found


def file_kind(
    row: str, name: str, target: str, before: Act, save: Act, *, again: Act | None = None, find: str | None = None
) -> Kind:
    """Of a file, or a set, that has this name. Who looks for a set opens its directory."""
    return Kind(
        row,
        name,
        before,
        save,
        partial(found_at, target if find is None else find),
        again or saver(target, NEXT),
        partial(owned_files, target),
        old=NONE if before is nothing else OLD,
    )


def over_each(row: str, target: str, make: Callable[[int], Act]) -> Iterator[Kind]:
    for over, old in (("nothing", NONE), ("a smaller file", SMALLER), ("a larger file", LARGER)):
        before = make(old) if old else nothing
        kind = file_kind(row, f"{row} over {over}", target, before, make(NEW), again=make(NEXT))
        yield replace(kind, old=old)


def _files_of_arrays() -> Iterator[Kind]:
    for row, target in (("safetensors, one file", "m.safetensors"), ("FlashPack, one file", "m.flashpack")):
        yield from over_each(row, target, partial(saver, target))
    target = "m.safetensors"
    plain = file_kind("", "", target, saver(target, OLD), saver(target, NEW))
    for row, save in (
        ("with checksums", saver(target, NEW, checksums=True)),
        ("not durable", saver(target, NEW, durable=False)),
        ("save_async", lambda folder: penstock.save_async(content(NEW), folder / target).wait()),
    ):
        yield replace(plain, row=row, name=row, save=save)
    for method in ("direct", "buffered"):
        save, before = (saver(target, value, method=method) for value in (HUGER, HUGE))
        name = f"2.5 MiB, {method}"
        yield replace(plain, row="larger files", name=name, before=before, save=save, old=HUGE, new=HUGER)
    for name, refuse in (("O_TMPFILE", seccomp.refuse_tmpfile), ("renameat2", seccomp.refuse_renameat2)):
        row = f"where there is no {name}"
        yield replace(plain, row=row, name=row, prepare=lambda folder, refuse=refuse: refuse())

    def seal(value: int, folder: Path) -> None:
        penstock.save(content(value), folder / target)
        penstock.seal(folder / target)

    def verified(folder: Path) -> int:
        found = found_at(target, folder)
        penstock.load(folder / target, framework="numpy", verify="if-any")
        return found

    plain = replace(plain, row="seal", find=verified)
    yield replace(plain, name="a save over a sealed file", before=partial(seal, OLD))
    yield replace(plain, name="a file that is sealed", save=lambda folder: penstock.seal(folder / target), new=OLD)
    again = partial(seal, NEXT)
    yield replace(plain, name="a save and its seal", before=partial(seal, OLD), save=partial(seal, NEW), again=again)
    sealed = partial(penstock.seal, sha256=True)
    yield replace(
        plain,
        name="a file that is sealed again",
        before=partial(seal, OLD),
        save=lambda folder: sealed(folder / target),
        new=OLD,
        again=again,
    )


def shards(target: str, value: int, count: int, **arguments: Any) -> Act:
    return saver(target, value, max_shard_size=LIMITS[count], **arguments)


def _sets() -> Iterator[Kind]:
    target = "m.safetensors"
    of_set = partial(file_kind, target=target, find=".")
    for name, before, save, again in (
        ("shards over nothing", nothing, shards(target, NEW, 3), shards(target, NEXT, 2)),
        ("shards over fewer", shards(target, OLD, 2), shards(target, NEW, 5), shards(target, NEXT, 2)),
        ("shards over more", shards(target, OLD, 5), shards(target, NEW, 2), saver(target, NEXT)),
        ("shards over as many", shards(target, OLD, 3), shards(target, NEW, 3), shards(target, NEXT, 3)),
        ("shards over one file", saver(target, OLD), shards(target, NEW, 3), shards(target, NEXT, 2)),
        ("one file over shards", shards(target, OLD, 3), saver(target, NEW), shards(target, NEXT, 2)),
        ("one file over shards", shards(target, OLD, 3), saver(target, NEW), saver(target, NEXT)),
    ):
        yield of_set(name, name, before=before, save=save, again=again)
    packed = "m.flashpack"
    before, save, again = shards(packed, OLD, 2), shards(packed, NEW, 3), saver(packed, NEXT)
    yield file_kind("shards over fewer", "shards of FlashPack", packed, before, save, again=again, find=".")

    def save_async(folder: Path) -> None:
        penstock.save_async(content(NEW), folder / target, max_shard_size=LIMITS[3]).wait()

    yield of_set("save_async", "save_async of a set", before=shards(target, OLD, 2), save=save_async)


def _conversions() -> Iterator[Kind]:
    """The source lies elsewhere."""

    def with_source(before: Act, folder: Path) -> None:
        penstock.save(content(NEW), folder.parent / "source.flashpack")
        before(folder)

    def convert(target: str, folder: Path, **arguments: Any) -> None:
        penstock.convert(folder.parent / "source.flashpack", folder / target, overwrite=True, **arguments)

    target = "m.safetensors"
    of_file = partial(file_kind, "convert", target=target, find=".")
    for name, before, save in (
        ("convert over nothing", nothing, partial(convert, target)),
        ("convert over a file", saver(target, OLD), partial(convert, target)),
        ("convert to shards", shards(target, OLD, 2), partial(convert, target, max_shard_size=LIMITS[3])),
        ("convert over shards", shards(target, OLD, 3), partial(convert, target)),
    ):
        yield replace(of_file(name, before=partial(with_source, before), save=save), old=OLD * (before is not nothing))

    def old_directory(folder: Path) -> None:
        penstock.save(content(OLD), folder.parent / "old.safetensors")
        penstock.convert(folder.parent / "old.safetensors", folder / "step", format="dcp")
        with_source(nothing, folder)

    def next_directory(folder: Path) -> None:
        penstock.save(content(NEXT), folder.parent / "next.safetensors")
        penstock.convert(folder.parent / "next.safetensors", folder / "step", format="dcp", overwrite=True)

    kind = Kind(
        "convert to a directory of DCP",
        "convert to a directory",
        old_directory,
        partial(convert, "step", format="dcp"),
        partial(found_at, "step"),
        next_directory,
        owned_directories,
    )
    yield kind
    find = partial(restored, kind.find)
    name = "convert to a directory, no renameat2"
    yield replace(kind, name=name, prepare=lambda _: seccomp.refuse_renameat2(), find=find)


def torch_saver(target: str, value: int, **arguments: Any) -> Act:
    return lambda folder: penstock.save(as_torch(value), folder / target, **arguments)


def _torch_files() -> Iterator[Kind]:
    import torch  # noqa: F401 - before anything forks

    for row, target, format in (
        ("torch zip, one file", "m.pt", "torch"),
        ("torch legacy, one file", "m.pt", "torch-legacy"),
    ):
        for kind in over_each(row, target, lambda value, format=format: torch_saver("m.pt", value, format=format)):
            yield replace(kind, find=partial(found_by_torch, target))


def found_by_torch(target: str, folder: Path) -> int:
    import torch

    if not (folder / target).exists():
        return NONE
    found = whole(penstock.load(folder / target, framework="torch"))
    if whole(torch.load(folder / target)) != found:
        raise LostError("torch finds another one")
    return found


def _drop_ins() -> Iterator[Kind]:
    def save_file(value: int) -> Act:
        from penstock.safetensors.torch import save_file

        return lambda folder: save_file(as_torch(value), folder / "m.safetensors")

    def pack(value: int) -> Act:
        from penstock.flashpack import pack_to_file

        return lambda folder: pack_to_file(as_torch(value), folder / "m.flashpack")

    def persist(value: int) -> Act:
        from penstock.fastpersist import fastpersist_save

        return lambda folder: fastpersist_save(as_torch(value), folder / "m.pt")

    def write(value: int) -> Act:
        import torch
        from penstock.fastpersist import FastFileWriter

        def save(folder: Path) -> None:
            with FastFileWriter(folder / "m.pt") as file:
                torch.save(as_torch(value), file)

        return save

    def checkpoint(writer: dict[str, Any], value: int) -> Act:
        from penstock.fastpersist import CheckpointEngine

        def save(folder: Path) -> None:
            engine = CheckpointEngine({"checkpoint": {"writer": writer}})
            engine.create("a")
            engine.save(as_torch(value), folder / "m.pt")
            engine.commit("a")

        return save

    yield from over_each("penstock.safetensors", "m.safetensors", save_file)
    yield from over_each("penstock.flashpack", "m.flashpack", pack)
    for name, make in (
        ("fastpersist_save", persist),
        ("FastFileWriter", write),
        ("CheckpointEngine", partial(checkpoint, {"type": "fast"})),
        ("CheckpointEngine, decoupled", partial(checkpoint, {"type": "fast", "decoupled": True})),
        ("CheckpointEngine, python", partial(checkpoint, {"type": "python"})),
    ):
        kind = file_kind("penstock.fastpersist, files", name, "m.pt", make(OLD), make(NEW), again=make(NEXT))
        yield replace(kind, find=partial(found_by_torch, "m.pt"))

    def parallel_saver(count: int, value: int) -> Act:
        from penstock.fastsafetensors import ParallelSaver

        return lambda folder: ParallelSaver(num_shards=count, fsync=True).save(as_torch(value), str(folder / "m"))

    for before, after in ((2, 3), (3, 2)):
        yield file_kind(
            "ParallelSaver of penstock.fastsafetensors",
            f"ParallelSaver, {after} over {before}",
            "m.safetensors",
            parallel_saver(before, OLD),
            parallel_saver(after, NEW),
            again=parallel_saver(2, NEXT),
            find=".",
        )


def _directories() -> Iterator[Kind]:
    yield from _dcp_steps()
    yield from _manager_steps()
    yield from _tags()


def _dcp_steps() -> Iterator[Kind]:
    import torch.distributed.checkpoint as dcp
    from penstock.dcp import StorageWriter
    from penstock.dcp import load as load_step

    def state(value: int) -> dict[str, Any]:
        return {"model": as_torch(value), "step": value}

    def save(value: int, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is one process
            dcp.save(state(value), storage_writer=StorageWriter(folder / "step"), no_dist=True)

    def find(folder: Path) -> int:
        if not (folder / "step").exists():
            return NONE
        loaded = load_step(folder / "step")
        if loaded["step"] != whole(loaded["model"]):
            raise LostError(f"step {loaded['step']}")
        return int(loaded["step"])

    old, new, following = (partial(save, value) for value in (OLD, NEW, NEXT))
    kind = Kind("penstock.dcp", "dcp.save over a step", old, new, find, following, owned_directories)
    yield kind
    yield replace(kind, name="dcp.save over nothing", before=nothing, old=NONE)
    find = partial(restored, find)
    yield replace(kind, name="dcp.save, no renameat2", prepare=lambda _: seccomp.refuse_renameat2(), find=find)


def _manager_steps() -> Iterator[Kind]:
    """Two steps are kept, and a third one comes."""

    def state(step: int) -> dict[str, Any]:
        return {"m.safetensors": as_torch(step), "progress": {"step": step}}

    def manager(folder: Path) -> penstock.CheckpointManager:
        return penstock.CheckpointManager(folder, keep=2)

    def before(folder: Path) -> None:
        for step in (SMALLER, LARGER):
            manager(folder).save(step, state(step))

    def save(step: int, folder: Path) -> None:
        manager(folder).save(step, state(step))

    def save_async(folder: Path) -> None:
        with manager(folder) as background:
            background.save_async(HUGE, state(HUGE))

    def find(folder: Path) -> int:
        steps = manager(folder).steps()
        for step in steps:
            saved = manager(folder).restore(step, verify="if-any")
            if saved is None or saved["progress"] != {"step": step} or whole(saved["m.safetensors"]) != step:
                raise LostError(f"step {step}")
        return NEXT if steps[-1] == HUGER and len(steps) == 2 else steps[-1]

    row = "CheckpointManager, with retention"
    again = partial(save, HUGER)
    kind = Kind(row, "save of a step", before, partial(save, HUGE), find, again, owned_directories, LARGER, HUGE)
    yield kind
    yield replace(kind, name="save_async of a step", save=save_async)
    yield replace(kind, name="save of a step again", save=partial(save, LARGER), new=LARGER)


def _tags() -> Iterator[Kind]:
    """As DeepSpeed saves them."""
    import torch
    from penstock._steps import remove_dead
    from penstock.fastpersist._deepspeed_engine import DeepSpeedCheckpointEngine

    files = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt")

    def save(tag: str, value: int, folder: Path, **writer: Any) -> None:
        engine = DeepSpeedCheckpointEngine({"checkpoint": {"writer": writer}}, True, timeout=60)
        info = _Info(tag, str(folder))
        with engine.saving(True):
            engine.create(info)
            engine.makedirs(folder / tag, exist_ok=True)
            for name in files:
                engine.save(as_torch(value), folder / tag / name)
            engine.commit(info)

    def find(folder: Path) -> int:
        remove_dead(folder)  # as load_checkpoint does first
        found = {}
        for path in folder.iterdir():
            if path.is_dir() and not path.name.startswith("."):
                values = {whole(torch.load(path / name)) for name in files}
                if len(values) != 1:
                    raise LostError(f"{path.name} is of {sorted(values)}")
                found[path.name] = values.pop()
        return found[(folder / "latest").read_text()]

    row = "penstock.fastpersist, tags"
    before, save_b, again = partial(save, "a", OLD), partial(save, "b", NEW), partial(save, "c", NEXT)
    kind = Kind(row, "a tag after another", before, save_b, find, again, owned_directories)
    yield kind
    yield replace(kind, name="a tag again", save=partial(save, "a", NEW))
    yield replace(kind, name="a decoupled tag", save=partial(save, "b", NEW, decoupled=True))
    yield replace(kind, name="a tag by python", save=partial(save, "b", NEW, type="python"))


@dataclass(frozen=True)
class _Info:
    """What DeepSpeed says of a checkpoint."""

    tag: str
    save_dir: str
    save_latest: bool = False


def _ranks() -> Iterator[Kind]:
    """Two ranks that save together: files that are shared are in hidden ones that have names."""

    def save(target: str, folder: Path, **arguments: Any) -> None:
        try:
            penstock.save_parallel(as_torch(NEW), folder / target, timeout=_PATIENCE, **arguments)
        except penstock.Error as problem:
            (folder.parent / f"said-{os.environ['RANK']}").write_text(str(problem))

    target = "m.safetensors"
    for what, before, act, find in (
        ("a file", torch_saver(target, OLD), partial(save, target), target),
        ("a set", shards(target, OLD, 2), partial(save, target, max_shard_size=LIMITS[3]), "."),
    ):
        for dies in ("first", "second", "both"):
            row = "save_parallel, all ranks killed" if dies == "both" else "save_parallel, one rank killed"
            kind = file_kind(row, f"{what}: {dies} of two ranks", target, before, act, find=find)
            yield replace(kind, prepare=meet, dies=dies)


_PATIENCE = 3.0  # of ranks whose other rank is dead
_PATIENCE_TO_MEET = 60.0  # nobody is killed before all are there


def meet(folder: Path) -> None:
    """Makes the process group of two ranks."""
    from datetime import timedelta

    import torch.distributed as dist

    patience = timedelta(seconds=_PATIENCE_TO_MEET)
    port = int((folder.parents[1] / "port").read_text())
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=patience)
    store = dist.PrefixStore(folder.parent.name, store)
    dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=2, timeout=patience)


def host_store(root: Path) -> None:
    """By which all ranks find each other, for as long as this process lives: as torchrun does it."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    (root / "port").write_text(str(store.port))
    signal.pause()
