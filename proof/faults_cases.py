"""The loads and saves that faults are injected into, and how they are judged: right bytes, the old file or the new."""

from __future__ import annotations

import gc
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import penstock
import torch
import torch.distributed.checkpoint as torch_dcp
from penstock import dcp

# Small enough for thousands of rounds, and of many requests all the same.
SHARD = 1 << 20
SETTLED_WITHIN = 60.0  # seconds for a thread that frees a file

State = dict[str, np.ndarray[Any, Any]]


def make_state(seed: int) -> State:
    """Tensors of odd sizes, so that blocks and pages end within them."""
    random = np.random.default_rng(seed)
    sizes = {"a": 270_001, "b": 12, "c": 1_390_000, "d": 0, "e": 524_288, "f": 5_003}
    return {name: random.integers(0, 256, size, dtype=np.uint8) for name, size in sizes.items()}


OLD, NEW = make_state(1), make_state(2)


def as_torch(state: State) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in state.items()}


def same(found: Any, wanted: State) -> bool:
    return set(found) == set(wanted) and all(np.array_equal(np.asarray(found[name]), wanted[name]) for name in wanted)


@dataclass(frozen=True)
class Case:
    """`act` is what is watched: a load of OLD, or a save of NEW over OLD, after which `reload` says what is there."""

    name: str
    prepare: Callable[[Path], object]  # makes a folder with OLD in it, once
    act: Callable[[Path], Any]
    reload: Callable[[Path], Any] | None = None
    target: str = ""  # what errors have to name

    @property
    def is_save(self) -> bool:
        return self.reload is not None


def plain(path: Path) -> Any:
    return penstock.load(path, framework="numpy", cache="copy")


def _save_case(name: str, target: str, **options: Any) -> Case:
    return Case(
        f"save {name}",
        lambda folder: penstock.save(OLD, folder / target, **options),
        lambda folder: penstock.save(NEW, folder / target, **options),
        lambda folder: plain(_index(folder / target) if "max_shard_size" in options else folder / target),
        target.partition(".")[0],
    )


def _load_case(name: str, target: str, act: Callable[[Path], Any], **options: Any) -> Case:
    return Case(
        f"load {name}",
        lambda folder: penstock.save(OLD, folder / target, **options),
        lambda folder: act(folder / target),
        target=target.partition(".")[0],
    )


def _write_dcp(state: State, folder: Path) -> None:
    torch_dcp.save(as_torch(state), storage_writer=dcp.StorageWriter(folder / "step"), no_dist=True)


def _read_dcp(folder: Path) -> Any:
    state = {name: torch.empty(array.shape, dtype=torch.uint8) for name, array in OLD.items()}
    torch_dcp.load(state, storage_reader=dcp.StorageReader(folder / "step"), no_dist=True)
    return state


def _into(path: Path) -> Any:
    state = {name: np.empty_like(array) for name, array in OLD.items()}
    penstock.load_into(state, path)
    return state


def _slices(path: Path) -> Any:
    with penstock.open(path, framework="numpy") as reader:
        return {name: reader[name][:] for name in OLD}


def _in_background(folder: Path) -> None:
    penstock.save_async(NEW, folder / "m.safetensors").wait()


def _seal(folder: Path) -> Any:
    penstock.seal(folder / "m.safetensors")


def _sealed(folder: Path) -> Any:
    """A seal is there and right, or there is none: the tensors say which, as OLD and NEW do."""
    report = penstock.verify(folder / "m.safetensors", checksums="seal") if _has_seal(folder) else None
    return OLD if report is None else NEW


def _has_seal(folder: Path) -> bool:
    return any("seal" in path.name and not path.name.startswith(".") for path in folder.iterdir())


def _prepare_sealed(folder: Path) -> None:
    penstock.save(OLD, folder / "m.safetensors")
    penstock.seal(folder / "m.safetensors")


def _prepare_convert(folder: Path) -> None:
    penstock.save(OLD, folder / "m.flashpack")
    penstock.save(NEW, folder / "source.safetensors", checksums=True)


def cases() -> list[Case]:
    direct: dict[str, Any] = {"framework": "numpy", "cache": "direct"}
    return [
        _save_case("safetensors", "m.safetensors", checksums=True),
        _save_case("safetensors, buffered", "m.safetensors", method="buffered"),
        _save_case("safetensors, direct", "m.safetensors", method="direct"),
        _save_case("shards", "m.safetensors", max_shard_size=SHARD),
        _save_case("FlashPack", "m.flashpack"),
        _save_case("torch zip", "m.pt"),
        _save_case("torch legacy", "m.pt", format="torch-legacy"),
        Case(
            "save in background",
            lambda folder: penstock.save(OLD, folder / "m.safetensors"),
            _in_background,
            lambda folder: plain(folder / "m.safetensors"),
            "m.",
        ),
        Case("save DCP", lambda folder: None, lambda folder: _write_dcp(NEW, folder), _find_dcp, "step"),
        Case("seal", lambda folder: penstock.save(OLD, folder / "m.safetensors"), _seal, _sealed, "m."),
        Case(
            "convert",
            _prepare_convert,
            lambda folder: penstock.convert(folder / "source.safetensors", folder / "m.flashpack", overwrite=True),
            lambda folder: plain(folder / "m.flashpack"),
            "",
        ),
        _load_case("safetensors", "m.safetensors", lambda path: penstock.load(path, **direct)),
        _load_case("safetensors, buffered", "m.safetensors", plain),
        _load_case(
            "safetensors, mapped", "m.safetensors", lambda path: penstock.load(path, framework="numpy", cache="mmap")
        ),
        _load_case(
            "safetensors, verified",
            "m.safetensors",
            lambda path: penstock.load(path, verify=True, **direct),
            checksums=True,
        ),
        _load_case("shards", "m.safetensors", lambda path: penstock.load(_index(path), **direct), max_shard_size=SHARD),
        _load_case("FlashPack", "m.flashpack", lambda path: penstock.load(path, **direct)),
        _load_case("torch zip", "m.pt", lambda path: penstock.load(path, **direct)),
        _load_case("torch legacy", "m.pt", lambda path: penstock.load(path, **direct), format="torch-legacy"),
        Case("load DCP", lambda folder: _write_dcp(OLD, folder), _read_dcp, target="step"),
        _load_case("into tensors", "m.safetensors", _into),
        _load_case("a stream", "m.safetensors", lambda path: dict(penstock.stream(path, framework="numpy"))),
        _load_case("slices", "m.safetensors", _slices),
        Case("verify a seal", _prepare_sealed, lambda folder: _verify(folder / "m.safetensors"), target="m."),
    ]


def _index(path: Path) -> Path:
    return path.with_name(f"{path.name}.index.json")


def _find_dcp(folder: Path) -> Any:
    return _read_dcp(folder) if (folder / "step").exists() else OLD


def _verify(path: Path) -> Any:
    penstock.verify(path, checksums="seal")
    return OLD


# ---- one round: the case with its fault, again without, and what is left behind


def is_temporary(name: str) -> bool:
    """But for the journal of a set, which the next save is to find: docs/formats/sets.md."""
    return Path(name).name.startswith(".") and not name.endswith(".saving")


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def copy_of(template: Path, folder: Path) -> None:
    """The same files: who replaces them leaves those of the template alone."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder, copy_function=os.link)


def _footprint() -> dict[str, int]:
    pool = penstock.MemoryPool.process_default()
    pool.trim()  # what is kept for the next load is no leak
    fields: dict[str, str] = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    found = {name: int(fields[name].split()[0]) for name in ("VmSize", "VmLck", "VmPin", "Threads")}
    return {**found, "memory in use": pool.used_bytes, "descriptors": len(os.listdir("/proc/self/fd"))}


def _settled(before: dict[str, int]) -> dict[str, int]:
    """Once threads that only free a file are through, and the kernel has taken down the rings."""
    deadline = time.monotonic() + SETTLED_WITHIN
    while any((now := _footprint())[name] > before[name] for name in ("Threads", "VmPin", "VmLck")):
        if time.monotonic() > deadline:
            break
        time.sleep(0.002)
    return now


def _error_of(problem: BaseException) -> BaseException:
    """DCP tells of errors of its ranks in an exception of torch."""
    failures = getattr(problem, "failures", None)
    return next(iter(failures.values()))[0] if failures else problem


@dataclass(frozen=True)
class Told:
    """An error without its frames, which hold what the call had begun."""

    kind: type[BaseException]
    text: str


def attempt(case: Case, folder: Path) -> tuple[Told | None, Any]:
    told, result = None, None
    try:
        result = case.act(folder)
    except BaseException as problem:
        told = Told(type(_error_of(problem)), str(_error_of(problem)))
    if told is not None:
        gc.collect()
    return told, result


def judge_error(problem: Told, folder: Path, fails: str) -> str:
    """What is wrong with an error."""
    text = problem.text
    if fails in ("mmap", "mremap", "mprotect", "madvise") and issubclass(problem.kind, MemoryError):
        return ""  # of the process, and of no file
    if fails in ("clone", "clone3") and text.startswith("cannot start a thread: "):
        return ""
    if problem.kind is AssertionError and "global metadata read failed" in text:  # by torch, with our error in it
        text = text.partition("; rank local")[0]
    elif not issubclass(problem.kind, penstock.Error):
        return f"{problem.kind.__name__}, which is no penstock.Error: {text}"
    if "\n" in text:
        return f"an error of several lines: {text}"
    if str(folder) not in text:
        return f"names no file: {text}"
    return ""


def judge_state(case: Case, folder: Path, failed: bool, result: Any) -> str:
    """What is wrong with the bytes."""
    if case.reload is None:
        return "" if failed or same(result, OLD) else "wrong bytes"
    found = case.reload(folder)
    if failed and same(found, OLD):
        return ""
    return "" if same(found, NEW) else ("an old checkpoint after a save that succeeded" if same(found, OLD) else "lost")


def play(case: Case, folder: Path, fails: str, begin: Callable[[], None], end: Callable[[], None]) -> bytes:
    """In the process that is watched. `fails`: the call that does, if any."""
    before, files = _footprint(), files_of(folder)
    begin()
    problem, result = attempt(case, folder)
    end()
    problems = []
    try:
        if problem is not None:
            problems.append(judge_error(problem, folder, fails))
        problems.append(judge_state(case, folder, problem is not None, result))
        if problem is None and case.is_save and fails in ("fsync", "fdatasync"):
            problems.append("a sync failed, and nobody was told")
        result = None
        left = {name for name in files_of(folder) - files if is_temporary(name)}
        if left and not fails.startswith(("unlink", "rmdir")):
            problems.append(f"leaves {sorted(left)}")
        again, result = attempt(case, folder)
        if again is not None:
            problems.append(f"does not work again: {again.text}")
        problems.append(judge_state(case, folder, False, result))
        result = None
        left = {name for name in files_of(folder) if Path(name).name.startswith(".")}
        if left:
            problems.append(f"leaves {sorted(left)} also after the next one")
    except BaseException as unexpected:
        problems.append(f"after that: {type(unexpected).__name__}: {unexpected}")
    after = _settled(before)
    answer = {
        "error": None if problem is None else f"{problem.kind.__name__}: {problem.text}",
        "problems": [each for each in problems if each],
        "grown": {name: after[name] - before[name] for name in after},
        "threads": [thread.name for thread in threading.enumerate()][1:],
    }
    return json.dumps(answer).encode()
