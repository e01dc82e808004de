"""Saves that are cut off, by penstock and by others, and what is found afterwards.

A process of its own, in the Python that has the libraries. It imports them once, takes orders as lines of JSON, obeys
each in a fork, so that nothing of an order is left in the next one, and answers with a line.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from power_disk import end_with_parent, shut_down

SECONDS = 120  # a save or load that takes longer hangs

# Two checkpoints that have no byte in common, in tensors that are written straight and in such that are not.
SHAPES = {
    "old": {"a": (300, 1000), "b": (10,), "c": (120_000,)},
    "new": {"a": (500, 1000), "b": (7,), "c": (400, 500), "d": (33_000,)},
}
SEEDS = {"old": 1, "new": 2}

Save = Callable[[Path, str], None]


@dataclass(frozen=True)
class Subject:
    """A way to save, over what another way has left."""

    save: Save
    load: Callable[[Path], dict[str, Any]]
    there: Callable[[Path], bool]  # is there what says that it is a checkpoint?
    before: Save | None = None  # what saved the old checkpoint; None: there was none


def tensors(which: str) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(SEEDS[which])
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES[which].items()}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    import torch

    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


# ---- penstock


def one_file(name: str, **options: Any) -> tuple[Save, Callable[[Path], dict[str, Any]], Callable[[Path], bool]]:
    def save(folder: Path, which: str) -> None:
        import penstock

        penstock.save(tensors(which), folder / name, **options)

    def load(folder: Path) -> dict[str, Any]:
        import penstock

        return dict(penstock.load(folder / name))

    return save, load, lambda folder: (folder / name).exists()


def load_folder(folder: Path) -> dict[str, Any]:
    import penstock

    return dict(penstock.load(folder))


def there_is_a_set(folder: Path) -> bool:
    """Or a file. Shards alone are none."""
    return any((folder / f"model.safetensors{suffix}").exists() for suffix in ("", ".index.json"))


def in_background(folder: Path, which: str) -> None:
    import penstock

    penstock.save_async(tensors(which), folder / "model.safetensors").wait()


def converted(target: str, **options: Any) -> Save:
    def save(folder: Path, which: str) -> None:
        import penstock

        penstock.convert(scratch() / f"{which}.safetensors", folder / target, overwrite=True, **options)

    return save


def dcp_save(folder: Path, which: str) -> None:
    import penstock.dcp
    import torch.distributed.checkpoint as dcp

    quietly()
    dcp.save(tensors(which), storage_writer=penstock.dcp.StorageWriter(folder / "step"), no_dist=True)


def dcp_load(folder: Path) -> dict[str, Any]:
    import penstock.dcp

    return penstock.dcp.load(folder / "step")


def managed_save(folder: Path, which: str) -> None:
    """Each in a step of its own, of which the last one is kept."""
    import penstock

    with penstock.CheckpointManager(folder / "run", keep=1) as manager:
        manager.save({"old": 1, "new": 2}[which], {"model": tensors(which)})


def managed_load(folder: Path) -> dict[str, Any]:
    import penstock

    step = penstock.CheckpointManager(folder / "run").restore()
    if step is None:
        raise FileNotFoundError("no step")
    return dict(step["model"])


def managed_steps(folder: Path) -> bool:
    return any((folder / "run").glob("step-*"))


def ours() -> dict[str, Subject]:
    subjects = {}
    formats = {
        "safetensors": one_file("model.safetensors"),
        "FlashPack": one_file("model.flashpack"),
        "torch zip": one_file("model.pt"),
        "torch legacy": one_file("model.pt", format="torch-legacy"),
    }
    for name, (save, load, there) in formats.items():
        subjects[f"{name} over nothing"] = Subject(save, load, there)
        subjects[f"{name} over a file"] = Subject(save, load, there, save)
    save, load, there = formats["safetensors"][0], load_folder, there_is_a_set
    two = one_file("model.safetensors", max_shard_size=1_300_000)[0]
    three = one_file("model.safetensors", max_shard_size=900_000)[0]
    step = dcp_load, lambda folder: (folder / "step").exists()
    subjects |= {
        "set over nothing": Subject(three, load, there),
        "set over a file": Subject(three, load, there, save),
        "set over a set": Subject(three, load, there, two),
        "file over a set": Subject(save, load, there, two),
        "save_async over a file": Subject(in_background, load, there, save),
        "penstock.dcp over nothing": Subject(dcp_save, *step),
        "penstock.dcp over a step": Subject(dcp_save, *step, dcp_save),
        "CheckpointManager, keep=1": Subject(managed_save, managed_load, managed_steps, managed_save),
        "convert to a file, over one": Subject(
            converted("model.flashpack"), *formats["FlashPack"][1:], formats["FlashPack"][0]
        ),
        "convert to a set, over one": Subject(converted("model.safetensors", max_shard_size=900_000), load, there, two),
        # What a cut must be seen to destroy, or it proves nothing.
        "durable=False over nothing": Subject(one_file("model.safetensors", durable=False)[0], load, there),
        "durable=False over a set": Subject(
            one_file("model.safetensors", durable=False, max_shard_size=900_000)[0], load, there, two
        ),
        "rename without fsync": Subject(renamed, load, there, save),
    }
    return subjects


def renamed(folder: Path, which: str) -> None:
    """As many programs do: no byte has to be on the drive when the name is."""
    import safetensors.torch

    safetensors.torch.save_file(tensors(which), folder / "part")
    os.replace(folder / "part", folder / "model.safetensors")


# ---- others


def quietly() -> None:
    import logging
    import warnings

    warnings.filterwarnings("ignore")
    logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)


def safetensors_save(folder: Path, which: str) -> None:
    import safetensors.torch

    safetensors.torch.save_file(tensors(which), folder / "model")


def safetensors_load(folder: Path) -> dict[str, Any]:
    import safetensors.torch

    return dict(safetensors.torch.load_file(folder / "model"))


def torch_save(folder: Path, which: str) -> None:
    import torch

    torch.save(tensors(which), folder / "model")


def torch_load(folder: Path) -> dict[str, Any]:
    import torch

    return dict(torch.load(folder / "model", weights_only=True))


def flashpack_save(folder: Path, which: str) -> None:
    import flashpack

    flashpack.pack_to_file(tensors(which), str(folder / "model"), target_dtype=None)


def flashpack_load(folder: Path) -> dict[str, Any]:
    """It fills modules, so one of either shape is tried."""
    import flashpack
    import torch

    def filled(which: str) -> dict[str, Any]:
        module = torch.nn.Module()
        for name, shape in SHAPES[which].items():
            module.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))
        flashpack.assign_from_file(module, str(folder / "model"), device="cpu")
        return {name: parameter.detach() for name, parameter in module.named_parameters()}

    try:
        return filled("new")
    except Exception:
        return filled("old")


def torch_dcp_save(folder: Path, which: str) -> None:
    import torch.distributed.checkpoint as dcp

    quietly()
    dcp.save(tensors(which), storage_writer=dcp.FileSystemWriter(folder / "model"), no_dist=True)


def torch_dcp_load(folder: Path) -> dict[str, Any]:
    import torch
    import torch.distributed.checkpoint as dcp

    quietly()
    reader = dcp.FileSystemReader(folder / "model")
    stored = reader.read_metadata().state_dict_metadata
    found = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in stored.items()}
    dcp.load(found, storage_reader=dcp.FileSystemReader(folder / "model"), no_dist=True)
    return found


def fastpersist_save(folder: Path, which: str) -> None:
    import torch
    from deepspeed.io import FastFileWriter, FastFileWriterConfig
    from deepspeed.ops.op_builder import AsyncIOBuilder

    handle = (
        AsyncIOBuilder()
        .load(verbose=False)
        .aio_handle(
            block_size=1 << 20, queue_depth=8, single_submit=False, overlap_events=False, intra_op_parallelism=1
        )
    )
    buffer = handle.new_cpu_locked_tensor(4 << 20, torch.empty(0, dtype=torch.uint8))
    config = FastFileWriterConfig(dnvme_handle=handle, pinned_tensor=buffer, double_buffer=True)
    writer = FastFileWriter(file_path=str(folder / "model"), config=config)
    torch.save(tensors(which), writer)
    writer.close()


def peers() -> dict[str, Subject]:
    ways = {
        "safetensors": (safetensors_save, safetensors_load),
        "torch.save": (torch_save, torch_load),
        "flashpack": (flashpack_save, flashpack_load),
        "torch DCP": (torch_dcp_save, torch_dcp_load),
        "FastPersist": (fastpersist_save, torch_load),
    }
    subjects = {}
    for name, (save, load) in ways.items():
        subjects[f"{name} over nothing"] = Subject(save, load, there_is_a_model)
        subjects[f"{name} over its like"] = Subject(save, load, there_is_a_model, save)
    return subjects


def there_is_a_model(folder: Path) -> bool:
    return (folder / "model").exists()


def import_peers() -> None:
    for name in ("safetensors.torch", "flashpack", "torch.distributed.checkpoint"):
        importlib.import_module(name)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
    try:
        importlib.import_module("fastpersist_peer").load_operators()
    except Exception as error:
        print(f"FastPersist is left out: {error}", file=sys.stderr)
        for name in [name for name in SUBJECTS if name.startswith("FastPersist")]:
            del SUBJECTS[name]


# ---- orders


def scratch() -> Path:
    return Path(sys.argv[2])


def look(subject: Subject, folder: Path) -> str:
    """What a load finds: old, new, nothing, or why it is neither."""
    try:
        found = subject.load(folder)
    except FileNotFoundError as error:
        return f"neither: {error}" if subject.there(folder) else "nothing"
    except BaseException as error:  # torch.distributed.checkpoint has one that is no Exception
        return f"neither: {type(error).__name__}: {error}"
    return next((which for which in SHAPES if same(found, tensors(which))), "neither: it loads, and has other bytes")


def save_again(subject: Subject, folder: Path) -> str | None:
    """Why the next save does not work as if nothing had happened: it must appear, and remove what the cut has left."""
    subject.save(folder, "new")
    found = look(subject, folder)
    if found != "new":
        return f"after the next save: {found}"
    hidden = sorted(path.name for path in folder.rglob(".*"))
    return f"after the next save there is {hidden[0]}" if hidden else None


def obey(order: dict[str, Any]) -> dict[str, Any]:
    """In the fork."""
    subject, folder = SUBJECTS[order["subject"]], Path(order["folder"])
    if order["do"] == "look":
        found = look(subject, folder)
        again = save_again(subject, folder) if order["again"] and not found.startswith("neither") else None
        return {"found": found, "again": again}
    if order["do"] == "prepare":
        if subject.before is not None:
            subject.before(folder, "old")
        return {}
    if order["mark"] is not None:
        mark(order["mark"], "saving")
    begin = time.monotonic()
    subject.save(folder, "new")
    end = time.monotonic()
    if order["cut_after"] == "returned":
        shut_down(os.open(folder, os.O_RDONLY), order["with_journal"])
    if order["mark"] is not None:
        mark(order["mark"], "returned")
        neighbour(folder)
    return {"begun": begin, "returned": end}


def mark(file: str, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY)
    os.write(descriptor, text.encode())
    os.close(descriptor)


def neighbour(folder: Path) -> None:
    """Another program syncs its own file: the journal is written, with names of files whose bytes may be nowhere."""
    descriptor = os.open(folder / "neighbour", os.O_WRONLY | os.O_CREAT)
    os.fsync(descriptor)
    os.close(descriptor)


def in_fork(order: dict[str, Any]) -> dict[str, Any]:
    """The fork's answer, or how it ended. A cut after some seconds is made here, by another process than the saver."""
    sink, source = os.pipe()[::-1]
    filesystem = os.open(order["folder"], os.O_RDONLY)
    forked = time.monotonic()
    pid = os.fork()
    if pid == 0:
        signal.alarm(SECONDS)
        try:
            answer = obey(order)
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        os.write(sink, json.dumps(answer).encode())
        os._exit(0)
    os.close(sink)
    cut = None
    if isinstance(order.get("cut_after"), float):
        time.sleep(order["cut_after"])
        cut = time.monotonic()
        shut_down(filesystem, order["with_journal"])
    os.close(filesystem)
    text = b"".join(iter(lambda: os.read(source, 1 << 16), b""))
    os.close(source)
    _, status = os.waitpid(pid, 0)
    answer = json.loads(text) if text else {"error": f"ended by signal {os.WTERMSIG(status)}"}
    return {**answer, "forked": forked, "cut": cut}


def main() -> None:
    end_with_parent()
    if sys.argv[1] == "peers":
        import_peers()
    else:
        for name in ("safetensors.torch", "penstock.dcp", "torch.distributed.checkpoint"):
            importlib.import_module(name)
        for which in SHAPES:
            one_file(f"{which}.safetensors")[0](scratch(), which)
    assert threading.active_count() == 1, "a fork of a process with threads may hang"
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2 if sys.argv[1] == "ours" else os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)  # peers print much about what happens to them
        print(json.dumps({"subjects": list(SUBJECTS)}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(in_fork(json.loads(line))), file=answers, flush=True)


SUBJECTS = peers() if sys.argv[1] == "peers" else ours()

if __name__ == "__main__":
    main()
