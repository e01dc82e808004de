"""The options that programs with ranks share, and what they tell of the machine and of the versions."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import machine
import programs
import ranks
from race import ROOT, versions
from runner import MEMORY_REST_SECONDS, find_peer_python


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--directory", type=Path, default=ROOT / "results" / "data" / "ranks", help="for the files")
    parser.add_argument("--keep", action="store_true", help="leave the files there; a later run finds them")
    parser.add_argument("--idle", type=float, default=1.0, metavar="SECONDS", help="least rest before each start")
    parser.add_argument("--drop", choices=["file", "everything"], default="file", help="as for race.py")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="of the random order")
    parser.add_argument("--python", default=sys.executable, help="that has penstock (default: this one)")
    parser.add_argument("--peer-python", default=find_peer_python(ROOT), help="that has the others")
    parser.add_argument("--output", type=Path, metavar="JSON", help="for every measurement (default: in results/)")


def setting_of(arguments: argparse.Namespace) -> ranks.Setting:
    arguments.directory.mkdir(parents=True, exist_ok=True)
    return ranks.Setting(
        arguments.directory.resolve(),
        arguments.python,
        arguments.peer_python,
        arguments.idle,
        arguments.drop == "everything",
    )


def describe(setting: ranks.Setting, rounds: int, seed: int) -> dict[str, Any]:
    return {
        **machine.describe(setting.directory, setting.drop_everything),
        "rounds": rounds,
        "seed": seed,
        "idle_seconds": setting.idle_seconds,
        "memory_rest_seconds": MEMORY_REST_SECONDS,
        "pages_touched_by": "libtouch" if (programs.FOLDER / "libtouch.so").exists() else "NumPy",
        "penstock": versions(setting.python, ["penstock", "torch", "numpy"]),
        "peers": versions(setting.peer_python, ["safetensors", "fastsafetensors", "torch", "numpy"]),
    }


def show_about(about: dict[str, Any]) -> None:
    for key, value in about.items():
        print(f"[bench] {key.replace('_', ' ')}: {value}", flush=True)
