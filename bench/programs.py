"""Where the programs of bench/native are: as `scripts/build_native.sh release` builds them, unless told otherwise."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "PENSTOCK_BENCH_PROGRAMS"  # set by race.py for the processes that it starts


def folder() -> Path:
    default = Path(__file__).resolve().parents[1] / "build" / "release" / "bench" / "native"
    return Path(os.environ.get(VARIABLE, default))
