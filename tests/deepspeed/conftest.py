"""Runs in .venv-deepspeed, on the CPU. DeepSpeed's operators are compiled once, into build/."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python"))

OPERATORS = ROOT / "build" / "deepspeed-operators"
os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["TORCH_EXTENSIONS_DIR"] = str(OPERATORS)
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where pip puts ninja
os.environ["OMP_NUM_THREADS"] = "1"

COMPILE = "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder; ShareMemCommBuilder().load()"


@pytest.fixture(scope="session", autouse=True)
def operators() -> None:
    """Compiled before anything is killed: a build that is killed leaves a lock that hangs the next one."""
    OPERATORS.mkdir(parents=True, exist_ok=True)
    with (OPERATORS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
