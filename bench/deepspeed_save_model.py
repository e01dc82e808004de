"""Checkpoints of a model that DeepSpeed trains, by its own checkpoint engines and by penstock's, at one size.

    scripts/setup.sh deepspeed
    .venv-deepspeed/bin/python bench/deepspeed_save_model.py --folder DIR --zero_stage 1 --mb_size 4096 --rounds 5

A line for each save, as DeepSpeed's micro-benchmark of that name prints them:

    test_ds_torch_save -- 4.29 GB, 3.80 secs, 1.13 GB/s

Each save is one of fresh processes; rounds are interleaved, in random order. The seconds are those of the slowest rank
for `engine.save_checkpoint`, and end when the drive has all of it: what does not sync its files is synced behind it.
Afterwards a new engine loads the checkpoint, must have the same parameters, and must take the same next step. A
decoupled save has two lines: until training goes on, and until it is committed, with nothing trained in between.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SECONDS_TO_LEARN_OF = 3600
BYTES_OF_A_PARAMETER = {0: 12, 1: 14, 2: 14, 3: 14}  # in a checkpoint, with the state of Adam
TAG = "tag"


@dataclass(frozen=True)
class Way:
    """Who saves, and "checkpoint.writer" of the configuration."""

    penstock: bool
    writer: dict[str, Any] | None


WAYS = {
    "test_ds_torch_save": Way(False, None),
    "test_ds_py_save": Way(False, {"type": "python", "data_parallel": "replica"}),
    "test_ds_aio_fast_save": Way(False, {"type": "fast", "data_parallel": "replica"}),
    "test_penstock_save": Way(True, None),
    "test_penstock_replica_save": Way(True, {"type": "fast", "data_parallel": "replica"}),
    "test_penstock_decoupled_save": Way(True, {"type": "fast", "decoupled": True}),
}


def make_engine(way: Way, stage: int, nbytes: int, ranks: int) -> Any:
    import deepspeed
    import torch

    numel = nbytes // BYTES_OF_A_PARAMETER[stage]
    width = 2048 if numel > 1 << 26 else 256
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(max(1, numel // width**2))))
    config: dict[str, Any] = {
        "train_batch_size": ranks,
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": stage > 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    }
    if way.writer is not None:
        config["checkpoint"] = {"writer": way.writer}
    return deepspeed.initialize(model=model, config=config)[0]


def train(engine: Any) -> float:
    import torch

    parameter = next(engine.module.parameters())
    width = getattr(parameter, "ds_shape", parameter.shape)[0]
    generator = torch.Generator().manual_seed(1)
    loss = engine(torch.randn(1, width, generator=generator).to(parameter.dtype)).float().pow(2).sum()
    engine.backward(loss)
    engine.step()
    return float(loss.detach())


def digest(engine: Any) -> str:
    import deepspeed
    import torch

    found = hashlib.sha256()
    for parameter in engine.module.parameters():
        is_partitioned = hasattr(parameter, "ds_id")
        with deepspeed.zero.GatheredParameters([parameter]) if is_partitioned else contextlib.nullcontext():
            found.update(parameter.detach().contiguous().view(torch.uint8).numpy())
    return found.hexdigest()


def sync(directory: Path) -> None:
    for path in [directory, *directory.rglob("*")]:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def run_rank(arguments: argparse.Namespace) -> None:
    """Saves once, and loads what was saved. Prints what came of it."""
    way, stage, ranks, rank = WAYS[arguments.way], arguments.zero_stage, arguments.ranks, arguments.rank
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    names |= {"CROSS_RANK": 0, "CROSS_SIZE": 1}  # its own writers ask for these
    os.environ.update({name: str(value) for name, value in names.items()})
    if way.penstock:
        import penstock.fastpersist

        penstock.fastpersist.install_into_deepspeed()
    elif way.writer is not None and way.writer["type"] == "fast":
        import fastpersist_peer

        fastpersist_peer.load_operators()
    import deepspeed
    from deepspeed import comm

    deepspeed.init_distributed("gloo")
    engine = make_engine(way, stage, arguments.mb_size << 20, ranks)
    train(engine)
    expected = digest(engine)
    folder = Path(arguments.folder)
    comm.barrier()
    start = time.perf_counter()
    engine.save_checkpoint(str(folder), tag=TAG)
    returned = time.perf_counter() - start
    if way.penstock:
        engine.checkpoint_engine.finish()
    elif rank == 0:
        sync(folder)
    done = time.perf_counter() - start
    comm.barrier()
    nbytes = sum(path.stat().st_size for path in (folder / TAG).rglob("*") if path.is_file())
    loss = train(engine)
    engine.destroy()
    del engine
    found = {"returned": returned, "done": done, "bytes": nbytes, "does_not_load": ""}
    try:
        check(arguments, expected, loss)
    except (Exception, SystemExit) as problem:
        if way.penstock or way.writer is None:
            raise
        names = ", ".join(sorted(path.name for path in (folder / TAG).iterdir()))
        reason = str(problem).partition("\n")[0] or f"of {names}"
        found["does_not_load"] = f"{type(problem).__name__} {reason}"
    print(json.dumps(found), flush=True)


def check(arguments: argparse.Namespace, expected: str, loss: float) -> None:
    """Loads what was saved into a new engine, and takes the next step."""
    # DeepSpeed's engines with a writer load with weights_only=True, which refuses their own files.
    way = WAYS[arguments.way] if WAYS[arguments.way].penstock else WAYS["test_ds_torch_save"]
    loaded = make_engine(way, arguments.zero_stage, arguments.mb_size << 20, arguments.ranks)
    loaded.load_checkpoint(arguments.folder)
    if digest(loaded) != expected or train(loaded) != loss:
        raise SystemExit(f"{arguments.way}: what was loaded is not what was saved")


def environment() -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(ROOT / "build" / "deepspeed-operators"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One save by fresh processes; where that fails, "problem" says why."""
    folder = Path(arguments.folder) / "checkpoints"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.sync()
    command = [sys.executable, __file__, "--way", name, "--folder", str(folder), "--ranks", str(arguments.ranks)]
    command += ["--zero_stage", str(arguments.zero_stage), "--mb_size", str(arguments.mb_size)]
    variables = environment()
    ranks = [
        subprocess.Popen(
            [*command, "--rank", str(rank)], env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(arguments.ranks)
    ]
    said = [process.communicate(timeout=SECONDS_TO_LEARN_OF)[0] for process in ranks]
    shutil.rmtree(folder, ignore_errors=True)
    failed = [text for process, text in zip(ranks, said, strict=True) if process.returncode != 0]
    if failed:
        lines = [line for line in failed[0].splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return {"problem": (errors or lines or ["it said nothing"])[-1].strip()}
    found = [json.loads(next(line for line in reversed(text.splitlines()) if line.startswith("{"))) for text in said]
    return {key: max(one[key] for one in found) for key in found[0]}


def say(name: str, nbytes: int, seconds: float) -> None:
    print(f"{name} -- {nbytes / 1e9:5.2f} GB, {seconds:5.2f} secs, {nbytes / 1e9 / seconds:5.2f} GB/s", flush=True)


def say_all(name: str, found: dict[str, Any]) -> None:
    if WAYS[name].writer is not None and WAYS[name].writer.get("decoupled"):
        say(f"{name} (training goes on)", found["bytes"], found["returned"])
    say(name, found["bytes"], found["done"])
    if found["does_not_load"]:
        print(f"  what it saved DOES NOT LOAD: {found['does_not_load']}", flush=True)


def race(arguments: argparse.Namespace) -> None:
    names = [name for name in WAYS if arguments.only in name]
    if arguments.ranks == 1:
        names = [name for name in names if "replica" not in name]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    left_out: dict[str, str] = {}
    for _ in range(arguments.rounds):
        for name in random.sample(names, len(names)):
            if name in left_out:
                continue
            one = measure(name, arguments)
            if "problem" not in one:
                found[name].append(one)
                say_all(name, one)
            elif WAYS[name].penstock or WAYS[name].writer is None:
                raise SystemExit(f"{name}: {one['problem']}")
            else:
                left_out[name] = one["problem"]
                print(f"{name} -- left out, DeepSpeed's own writer fails here: {one['problem']}", flush=True)
    print(f"\nZeRO {arguments.zero_stage}, {arguments.ranks} rank(s), medians of {arguments.rounds}:")
    for name, measured in found.items():
        if measured:
            times = {key: median(one[key] for one in measured) for key in ("returned", "done", "bytes")}
            say_all(name, {**times, "does_not_load": measured[0]["does_not_load"]})
        else:
            print(f"{name} -- left out: {left_out[name]}")
    results = ROOT / "results"
    results.mkdir(exist_ok=True)
    path = results / time.strftime("deepspeed-%Y%m%d-%H%M%S.json")
    path.write_text(json.dumps({"arguments": vars(arguments), "measured": found, "left_out": left_out}, indent=1))
    print(f"everything: {path.relative_to(ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, help="where checkpoints go, on the drive to be measured")
    parser.add_argument("--zero_stage", type=int, choices=range(4), default=1)
    parser.add_argument("--mb_size", type=int, default=1024, help="MiB of a checkpoint, about")
    parser.add_argument("--ranks", type=int, default=1, help="processes, over gloo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="ways whose names have this in them")
    parser.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way is None:
        race(arguments)
    else:
        run_rank(arguments)


if __name__ == "__main__":
    main()
