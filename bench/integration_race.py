"""penstock inside the tools that people use, and what is promised of it: from_pretrained, torch.distributed.checkpoint,
verified loads, checksums, and vLLM (in .venv-vllm, which `scripts/setup.sh vllm` makes; without it that is left out).

    bench/integration_race.py                       # 2 GiB, 5 rounds: a quarter of an hour
    bench/integration_race.py --quick               # 0.25 GiB, 1 round
    bench/integration_race.py --only dcp --rounds 9

Every measurement is a fresh process; rounds are interleaved, in random order. Loads end when every page was touched,
saves when the drive has all of it. "alone" is penstock without the tool: what no ratio can be much better than.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import machine
import model
import vllm_ways
from race import ROOT

REST_SECONDS = 1.0
VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
VLLM_SHARE = 0.5  # of the size: its model is 1 GiB where that of others is 2


@dataclass(frozen=True)
class Figure:
    """A ratio that is promised: of the slower one's time over the quicker one's, unless `at_most`."""

    name: str
    over: str
    under: str
    target: float
    alone: str = ""  # what stands for the engine alone, in place of `under`
    at_most: bool = False


FIGURES = [
    Figure(
        "from_pretrained with accelerate(), cold", "pretrained stock cold", "pretrained ours cold", 1.6, "load cold"
    ),
    Figure("from_pretrained with accelerate(), warm", "pretrained stock warm", "pretrained ours warm", 0.95),
    Figure("dcp.save over FileSystemWriter", "dcp save torch", "dcp save ours", 2, "save"),
    Figure("dcp.save over HuggingFaceStorageWriter", "dcp save hf", "dcp save ours", 4, "save"),
    Figure("dcp.load cold over FileSystemReader", "dcp load torch", "dcp load ours", 2, "load into cold"),
    Figure("dcp.async_save holds its caller, over one copy", "dcp async ours", "memcpy", 1.1, at_most=True),
    Figure("dcp.async_save, second: over a copy to used memory", "dcp async again", "memcpy again", 1.1, at_most=True),
    Figure("load(verify=True) with a seal, cold", "verify sealed cold", "load cold", 1.05, at_most=True),
    Figure("load(verify=True) with stored checksums, cold", "verify stored cold", "load cold", 1.05, at_most=True),
    # Where its median holds, penstock._save.CHECKSUMS becomes True, and docs/guides/verified.md says so.
    Figure("save with checksums", "save checksums", "save", 1.03, at_most=True),
    Figure("vLLM's weights, cold, over auto", "vllm auto cold", "vllm penstock cold", 2),
    *[
        Figure(f"vLLM's weights, cold, over {way}", f"vllm {way} cold", "vllm penstock cold", 1.5)
        for way in ("multithread", "fastsafetensors", "runai")
    ],
    Figure("vLLM's weights, warm, over auto", "vllm auto warm", "vllm penstock warm", 0.95),
]
WAYS = sorted({way for figure in FIGURES for way in (figure.over, figure.under, figure.alone) if way})


# ---- In the measured process ----------------------------------------------------------------------------------------


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def timed(action: Callable[[], Any]) -> float:
    begin = time.monotonic()
    kept = action()
    seconds = time.monotonic() - begin
    del kept
    return seconds


def touched(tensors: dict[str, Any]) -> dict[str, Any]:
    """One byte of every page is read."""
    import torch

    for tensor in tensors.values():
        int(tensor.detach().view(-1).view(torch.uint8)[::4096].max())
    return tensors


def loading(source: Path, cold: bool, action: Callable[[], dict[str, Any]]) -> float:
    make_ready(source, cold)
    return timed(lambda: touched(action()))


def make_ready(source: Path, cold: bool) -> None:
    if cold:
        machine.drop_page_cache(files_of(source), everything=False)
    else:
        for path in files_of(source):
            machine.warm_page_cache(path)


def syncing(target: Path, action: Callable[[], Any]) -> Callable[[], None]:
    """A save whose writer does not sync, and what makes it durable."""

    def run() -> None:
        action()
        for path in [*files_of(target), target]:
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    return run


def pretrained(folder: Path, ours: bool, cold: bool) -> float:
    import penstock
    import transformers
    from transformers import LlamaForCausalLM

    transformers.utils.logging.disable_progress_bar()
    if ours:
        penstock.accelerate("transformers")
    # A first, tiny model: what a process imports and compiles once is not what is measured.
    LlamaForCausalLM.from_pretrained(folder / "tiny", dtype="auto")
    load = lambda: dict(LlamaForCausalLM.from_pretrained(folder / "llama", dtype="auto").state_dict())  # noqa: E731
    return loading(folder / "llama", cold, load)


def one_process() -> None:
    import torch.distributed

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)


def dcp_save(folder: Path, who: str) -> float:
    import penstock.dcp
    import torch.distributed.checkpoint as dcp

    state = state_of(folder)
    target = folder / f"dcp-{who}-new"
    shutil.rmtree(target, ignore_errors=True)
    if who == "ours":
        seconds = timed(lambda: dcp.save(state, storage_writer=penstock.dcp.StorageWriter(target)))
    elif who == "torch":
        seconds = timed(lambda: dcp.save(state, storage_writer=dcp.FileSystemWriter(target, sync_files=True)))
    else:
        writer = dcp.HuggingFaceStorageWriter(str(target), thread_count=os.cpu_count() or 1)
        seconds = timed(syncing(target, lambda: dcp.save(state, storage_writer=writer)))
    kept = folder / f"dcp-{who}"
    shutil.rmtree(kept, ignore_errors=True)
    target.rename(kept)
    return seconds


def state_of(folder: Path) -> dict[str, Any]:
    import penstock

    state: dict[str, Any] = penstock.load(folder / "llama", cache="copy")
    return state


def dcp_load(folder: Path, who: str) -> float:
    import penstock.dcp
    import torch.distributed.checkpoint as dcp

    source = folder / f"dcp-{who}"
    state = state_of(folder)
    reader = penstock.dcp.StorageReader(source) if who == "ours" else dcp.FileSystemReader(source)

    def load() -> dict[str, Any]:
        dcp.load(state, storage_reader=reader)
        return state

    return loading(source, True, load)


def dcp_async(folder: Path, again: bool) -> float:
    import penstock.dcp
    import torch.distributed.checkpoint as dcp

    one_process()
    state = state_of(folder)
    seconds = 0.0
    for _ in range(2 if again else 1):
        target = folder / "dcp-async"
        shutil.rmtree(target, ignore_errors=True)
        begin = time.monotonic()
        future = dcp.async_save(state, storage_writer=penstock.dcp.StorageWriter(target))
        seconds = time.monotonic() - begin
        future.result()
    return seconds


def memcpy(folder: Path, again: bool) -> float:
    import torch

    state = state_of(folder)
    if not again:
        return timed(lambda: {name: tensor.clone() for name, tensor in state.items()})
    copies = {name: torch.empty_like(tensor).fill_(0) for name, tensor in state.items()}
    return timed(lambda: [copies[name].copy_(tensor) for name, tensor in state.items()])


def load_into(folder: Path) -> float:
    import penstock

    state = state_of(folder)

    def load() -> dict[str, Any]:
        penstock.load_into(state, folder / "llama", cache="direct")
        return state

    return loading(folder / "llama", True, load)


def save(folder: Path, checksums: bool) -> float:
    import penstock

    state = state_of(folder)
    target = folder / "saved.safetensors"
    target.unlink(missing_ok=True)
    return timed(lambda: penstock.save(state, target, checksums=checksums))


def load(folder: Path, source: str, verify: bool) -> float:
    import penstock

    return loading(folder / source, True, lambda: dict(penstock.load(folder / source, verify=verify)))


def measure(way: str, folder: Path) -> float:
    words = way.split()
    if words[0] == "vllm":
        return vllm_ways.loading(folder, words[1], lambda source: make_ready(source, words[2] == "cold"))
    if words[0] == "pretrained":
        return pretrained(folder, words[1] == "ours", words[2] == "cold")
    if words[:2] == ["dcp", "save"]:
        return dcp_save(folder, words[2])
    if words[:2] == ["dcp", "load"]:
        return dcp_load(folder, words[2])
    if words[:2] == ["dcp", "async"]:
        return dcp_async(folder, words[2] == "again")
    if words[0] == "memcpy":
        return memcpy(folder, words[-1] == "again")
    if words[0] == "save":
        return save(folder, words[-1] == "checksums")
    if words[:2] == ["load", "into"]:
        return load_into(folder)
    if words[0] == "verify":
        return load(folder, "sealed" if words[1] == "sealed" else "stored", verify=True)
    return load(folder, "llama", verify=False)


# ---- The driver -----------------------------------------------------------------------------------------------------


def is_of_vllm(way: str) -> bool:
    return way.startswith("vllm ")


def prepare(folder: Path, gib: float) -> int:
    """A Llama, a tiny one, the first with a seal and with checksums, and directories of dcp. Gives its bytes."""
    import penstock
    import penstock.dcp
    import torch.distributed.checkpoint as dcp
    from transformers import LlamaConfig, LlamaForCausalLM

    layers = model.layers_for(gib)
    sizes: dict[str, Any] = {"hidden_size": model.HIDDEN, "intermediate_size": model.INTERMEDIATE}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": model.VOCABULARY}
    config = LlamaConfig(num_hidden_layers=layers, dtype="bfloat16", **sizes)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder / "llama")
    tiny = LlamaConfig(
        num_hidden_layers=1,
        hidden_size=64,
        intermediate_size=64,
        num_attention_heads=4,
        vocab_size=64,
        dtype="bfloat16",
    )
    LlamaForCausalLM(tiny).bfloat16().save_pretrained(folder / "tiny")
    written = model.ensure(folder / "llama" / "model.safetensors", model.transformer(layers), 7)
    for name in ("sealed", "stored"):
        (folder / name).mkdir(exist_ok=True)
    source = folder / "llama" / "model.safetensors"
    if not (folder / "sealed" / source.name).exists():
        os.link(source, folder / "sealed" / source.name)
    penstock.seal(folder / "sealed" / source.name)
    penstock.save(penstock.load(source), folder / "stored" / source.name, checksums=True, metadata={"format": "pt"})
    state = penstock.load(source)
    dcp.save(state, storage_writer=penstock.dcp.StorageWriter(folder / "dcp-ours"))
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder / "dcp-torch"))
    return written.nbytes


def run(way: str, folder: Path) -> float:
    time.sleep(REST_SECONDS)
    command = [
        VLLM_PYTHON if is_of_vllm(way) else sys.executable,
        __file__,
        "--measure",
        way,
        "--directory",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"[bench] {way} failed: {done.stderr.strip()[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def spread_of(values: list[float]) -> str:
    return f"{min(values):.2f} - {max(values):.2f}"


def show(results: dict[str, list[float]], nbytes: dict[str, int]) -> list[dict[str, Any]]:
    print(f"\n{'':24} {'seconds':>8} {'range':>15} {'GiB/s':>7}")
    for way, seconds in results.items():
        rate = nbytes[way] / model.GIB / median(seconds)
        print(f"{way:24} {median(seconds):8.3f} {min(seconds):6.3f} - {max(seconds):6.3f} {rate:7.2f}")
    print(f"\n{'figure':52} {'target':>9} {'ratio':>6} {'range':>13} {'alone':>6}")
    rows = []
    for figure in FIGURES:
        if figure.over not in results or figure.under not in results:
            continue
        over, under = results[figure.over], results[figure.under]
        ratios = [a / b for a, b in zip(over, under, strict=True)]
        alone = median(over) / median(results[figure.alone]) if figure.alone in results else None
        ratio = median(ratios)
        holds = min(ratios) <= figure.target if figure.at_most else max(ratios) >= figure.target
        if alone is not None and not holds:
            holds = ratio >= 0.9 * alone
        rows.append({"figure": figure.name, "target": figure.target, "ratio": ratio, "alone": alone, "holds": holds})
        bound = f"{'<=' if figure.at_most else '>='} {figure.target:g}"
        known = f"{alone:6.2f}" if alone is not None else f"{'':6}"
        verdict = "" if holds else "  MISSED"
        print(f"{figure.name:52} {bound:>9} {ratio:6.2f} {spread_of(ratios):>13} {known}{verdict}")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="0.25 GiB, 1 round")
    parser.add_argument("--rounds", type=int, help="measurements of each (default: 5)")
    parser.add_argument("--gib", type=float, help="size of the model (default: 2)")
    parser.add_argument("--only", default="", metavar="REGEX", help="figures whose names or ways match")
    parser.add_argument("--directory", type=Path, default=ROOT / "results" / "data" / "integrations")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="of the random order")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.directory.resolve()
    if arguments.measure:
        print(json.dumps({"seconds": measure(arguments.measure, folder)}))
        return 0
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [f for f in FIGURES if re.search(arguments.only, f"{f.name} | {f.over} | {f.under}")]
    if not chosen:
        parser.error(f"no figure matches --only {arguments.only}")
    if not VLLM_PYTHON.exists() and any(is_of_vllm(f.over) for f in chosen):
        print("[bench] without vLLM: .venv-vllm is not set up (`make test-vllm` does that)", flush=True)
        chosen = [f for f in chosen if not is_of_vllm(f.over)]
    ways = sorted({way for figure in chosen for way in (figure.over, figure.under, figure.alone) if way})
    try:
        gib = arguments.gib or (0.25 if arguments.quick else 2)
        nbytes: dict[str, int] = {}
        for group, make, share in ((True, vllm_ways.prepare, VLLM_SHARE), (False, prepare, 1.0)):
            mine = [way for way in ways if is_of_vllm(way) == group]
            if mine:
                nbytes |= dict.fromkeys(mine, make(folder, gib * share))
        written = " and ".join(f"{size / model.GIB:.2f} GiB" for size in sorted(set(nbytes.values())))
        print(f"[bench] {written}, {rounds} rounds, seed {arguments.seed}", flush=True)
        order, results = random.Random(arguments.seed), {way: list[float]() for way in ways}
        for number in range(rounds):
            for way in order.sample(ways, len(ways)):
                results[way].append(run(way, folder))
                print(f"[bench] round {number + 1}/{rounds}  {way:24} {results[way][-1]:8.3f} s", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = show(results, nbytes)
    path = ROOT / "results" / time.strftime("integrations-%Y%m%d-%H%M%S.json")
    path.parent.mkdir(exist_ok=True)
    about = machine.describe(path.parent, drop_everything=False)
    path.write_text(json.dumps({"about": about, "rounds": rounds, "seconds": results, "figures": rows}, indent=1))
    print(f"[bench] every measurement: {path}")
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
