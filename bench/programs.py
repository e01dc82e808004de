"""Where the programs of bench/native are: as `scripts/build_native.sh release` builds them."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "build" / "release" / "bench" / "native"
