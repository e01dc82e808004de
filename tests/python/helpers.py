"""What several tests need: files made by hand, bit-exact comparison, subprocesses, lowered privileges."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

# Every element type of the format, and its width in bits.
BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


def header_bytes(header: Any) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_raw(path: Path, header: Any, data: bytes = b"") -> Path:
    """A safetensors file made by hand, right or wrong."""
    path.write_bytes(header_bytes(header) + data)
    return path


def one_tensor(dtype: str, shape: list[int], nbytes: int) -> dict[str, Any]:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, nbytes]}}


def random_bytes(count: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8).tobytes()


def bits_of(tensor: Any) -> bytes:
    """A tensor's or array's bytes, in row-major order."""
    if isinstance(tensor, torch.Tensor):
        tensor = tensor.detach().contiguous().flatten().view(torch.uint8).numpy()
    return np.ascontiguousarray(tensor).tobytes()


def same(a: Any, b: Any) -> bool:
    """Equal in type, shape and every bit."""
    return a.dtype == b.dtype and tuple(a.shape) == tuple(b.shape) and bits_of(a) == bits_of(b)


def assert_same_tensors(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(actual) == set(expected)
    for name, tensor in expected.items():
        assert same(actual[name], tensor), name


def open_descriptors() -> set[str]:
    """What /proc/self/fd shows, by number and target."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists the directory
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return {entry for entry in found if not entry.endswith("/fd")}


def run_python(code: str, *arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=check,
        timeout=120,
        env={**os.environ, **environment},
    )


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Root may do anything; be nobody for a while, so that the system refuses what it should."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@contextlib.contextmanager
def mounted_disk(folder: Path, size: str) -> Iterator[Path]:
    """A filesystem of this size."""
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small filesystem needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small filesystem can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        # Large files that were replaced are freed by a thread, and keep the filesystem busy for that long.
        deadline = time.monotonic() + 30
        while subprocess.run(["umount", str(folder)], capture_output=True).returncode != 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def rendezvous() -> dict[str, str]:
    """The environment by which the ranks of a launch find each other: a port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
