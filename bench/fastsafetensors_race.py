"""penstock.fastsafetensors beside fastsafetensors, and reads that are exact per rank, with what is promised of them.

    bench/fastsafetensors_race.py                     # 4 files of 512 MiB, 5 rounds: a quarter of an hour
    bench/fastsafetensors_race.py --quick             # 4 files of 64 MiB, 1 round: two minutes
    bench/fastsafetensors_race.py --only "2 ranks"    # some of it

"e" is the engine alone: penstock.load of the same files. Cold files, fresh processes, rounds in random order: see
README.md. It ends with 1 where something is missed, left out or failed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import fastsafetensors_figures as figures
import model
import rank_options
import ranks
import run_results
from race import ROOT
from rank_table import HEADING, line_of, row_of
from rank_ways import BY_KEY

FILES = 4
EXPERT_RANKS, EXPERT_RANK = 8, 3
# Rows of a slice for one of four ranks have 4 KiB and more.
MATRICES = {"q_proj": [2048, 8192], "gate_proj": [2048, 8192], "up_proj": [2048, 8192], "down_proj": [1024, 16384]}
TENSOR_PARALLEL = {"*.q_proj.weight": 0, "*.gate_proj.weight": 0, "*.up_proj.weight": 0, "*.down_proj.weight": 1}
SLICES = {
    "row slices": dict.fromkeys(TENSOR_PARALLEL, 0),
    "column slices": dict.fromkeys(TENSOR_PARALLEL, 1),
}


def shards_of(mib: int) -> list[list[model.Tensor]]:
    """Files of so many MiB each: layers of four matrices of 32 MiB and a norm, with fewer rows in smaller files."""
    layers, whole = max(1, mib // 128), sum(map(nbytes_of, MATRICES.values()))
    shrink = max(1, round(layers * whole / (mib << 20)))
    shards = []
    for number in range(FILES):
        shard: list[model.Tensor] = []
        for layer in range(number * layers, (number + 1) * layers):
            prefix = f"model.layers.{layer}."
            shard += [(f"{prefix}{name}.weight", "BF16", [r // shrink, c]) for name, (r, c) in MATRICES.items()]
            shard.append((f"{prefix}input_layernorm.weight", "BF16", [8192]))
        shards.append(shard)
    return shards


def nbytes_of(shape: list[int]) -> int:
    return model.tensor_nbytes(("", "BF16", shape))


def dense_entries(checkpoint: ranks.Checkpoint) -> list[ranks.Entry]:
    """Loaders in one process and in two ranks, and slices for four."""

    def entry(group: str, way: str, count: int, **options: Any) -> ranks.Entry:
        return ranks.entry_of(f"{group}, {BY_KEY[way].name}", way, checkpoint, count, **options)

    loaders = ("peer-files", "peer-parallel", "files", "parallel")
    found = [entry("1 process", way, 1) for way in ("load", *loaders)]
    found += [entry("2 ranks", way, 2, plan=TENSOR_PARALLEL) for way in ("load", *loaders)]
    for way in ("peer-parallel", "parallel"):
        key = f"2 ranks, {BY_KEY[way].name} of {figures.BATCH_BYTES >> 20} MiB"
        bounded = {"plan": TENSOR_PARALLEL, "max_batch_bytes": figures.BATCH_BYTES}
        found.append(ranks.entry_of(key, way, checkpoint, 2, **bounded))
    return found + [entry(f"4 ranks, {name}", "load", 4, plan=plan) for name, plan in SLICES.items()]


def expert_entries(checkpoint: ranks.Checkpoint, experts: int) -> list[ranks.Entry]:
    found = []
    for way in ("load", "parallel", "peer-parallel"):
        name, wanted = BY_KEY[way].name, (experts, EXPERT_RANKS, EXPERT_RANK)
        found.append(ranks.entry_of(f"50,000 tensors, {name}", way, checkpoint))
        found.append(ranks.entry_of(f"50,000 tensors, experts 1/8, {name}", way, checkpoint, experts=wanted))
    return found


def experts_in(tensors: list[model.Tensor]) -> int:
    numbers = (re.search(r"\.experts\.(\d+)\.", name) for name, _, _ in tensors)
    return 1 + max(int(found[1]) for found in numbers if found)


def entries_of(setting: ranks.Setting, mib: int, expert_gib: float, only: str) -> list[ranks.Entry]:
    """Writes the checkpoints that are needed for what was chosen."""
    dense = ranks.Checkpoint("dense", [], 0)
    mixture = model.mixture_of_experts(expert_gib)
    experts = experts_in(mixture)
    if any(re.search(only, entry.key) for entry in dense_entries(dense)):
        dense = ranks.write_checkpoint("dense", setting.directory / "dense", shards_of(mib))
    chosen = [entry for entry in dense_entries(dense) if re.search(only, entry.key)]
    empty = ranks.Checkpoint("experts", [], 0)
    if any(re.search(only, entry.key) for entry in expert_entries(empty, experts)):
        empty = ranks.write_checkpoint("experts", setting.directory / "experts", [mixture])
    return chosen + [entry for entry in expert_entries(empty, experts) if re.search(only, entry.key)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4 files of 64 MiB, 7,000 tensors of experts, 1 round")
    parser.add_argument("--rounds", type=int, help="measurements of each (default: 5)")
    parser.add_argument("--mib", type=int, help="size of each of the four files (default: 512)")
    parser.add_argument("--only", default="", metavar="REGEX", help="only what matches, as in '2 ranks'")
    parser.add_argument("--from", type=Path, dest="source", metavar="JSON", help="measure nothing: show an earlier run")
    rank_options.add_options(parser)
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 5)
    arguments.mib = arguments.mib or (64 if arguments.quick else 512)
    return arguments


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], ranks.Results, dict[str, str]]:
    setting = rank_options.setting_of(arguments)
    about = rank_options.describe(setting, arguments.rounds, arguments.seed)
    rank_options.show_about(about)
    try:
        chosen = entries_of(setting, arguments.mib, 0.25 if arguments.quick else 2.0, arguments.only)
        entries, left_out = ranks.without_those_that_cannot_run(chosen, setting)
        results = ranks.run(entries, setting, arguments.rounds, arguments.seed, left_out)
    finally:
        if not arguments.keep:
            for name in ("dense", "experts"):
                shutil.rmtree(setting.directory / name, ignore_errors=True)
    for entry in chosen:
        for result in results.get(entry.key, []):
            result["files"] = len(entry.checkpoint.files)
    return about, in_order(results, [entry.key for entry in chosen]), left_out


def in_order(results: ranks.Results, keys: list[str]) -> ranks.Results:
    return {key: results[key] for key in keys if key in results}


def show(results: ranks.Results) -> None:
    print(f"\n{HEADING}")
    for key, measured in results.items():
        print(line_of(row_of(key, measured), key))


def as_json(
    about: dict[str, Any], results: ranks.Results, left_out: dict[str, str], found: list[figures.Figure]
) -> dict[str, Any]:
    return {
        "about": about,
        "figures": figures.as_json(found),
        "cases": [
            {"key": key, "summary": asdict(row_of(key, measured)), "measurements": measured}
            for key, measured in results.items()
        ],
        "left_out": left_out,
    }


def read(path: Path) -> tuple[dict[str, Any], ranks.Results, dict[str, str]]:
    content = json.loads(path.read_text())
    return content["about"], {one["key"]: one["measurements"] for one in content["cases"]}, content["left_out"]


def main() -> int:
    arguments = parse_arguments()
    about, results, left_out = read(arguments.source) if arguments.source else measure(arguments)
    found = figures.figures_of(results)
    show(results)
    figures.show(found)
    for key, reason in left_out.items():
        print(f"[bench] left out: {key}: {reason}")
    if not arguments.source:
        path = arguments.output or ROOT / "results" / time.strftime("fastsafetensors-%Y%m%d-%H%M%S.json")
        run_results.write(path, as_json(about, results, left_out, found))
        print(f"[bench] every measurement: {path}")
    return 0 if not left_out and all(figure.holds for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
