"""fio with direct I/O, 4 MiB blocks, eight in flight: what the drive gives to a program that only moves bytes.

Its own clock is used, which leaves out its start-up and the allocation of the file it writes.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess

from cases import ASSIGN_COLD, COLD_LOAD, ONE_COLD, PACK, SAVE, SHARDS_COLD, Case, Task
from flashpack_file import FLASHPACK_INPUT
from tensors import checkpoint_files

COMMON = [
    "fio",
    "--name=ceiling",
    "--ioengine=io_uring",
    "--direct=1",
    "--bs=4M",
    "--iodepth=8",
    "--output-format=json",
]


def run_fio(arguments: list[str], direction: str) -> dict[str, float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = subprocess.run([*COMMON, *arguments], check=True, capture_output=True, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    job = json.loads(text[text.index("{") :])["jobs"][0][direction]
    return {
        "seconds": job["io_bytes"] / job["bw_bytes"],
        "bytes": job["io_bytes"],
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


def read(task: Task, _python: str) -> dict[str, float]:
    files = ":".join(checkpoint_files(task.file))
    return run_fio([f"--filename={files}", "--file_service_type=sequential", "--rw=read", "--readonly"], "read")


def write(task: Task, _python: str) -> dict[str, float]:
    size = os.path.getsize(task.file)
    options = [f"--filename={task.output}", f"--size={size}", "--rw=write", "--fallocate=posix", "--end_fsync=1"]
    return run_fio(options, "write")


CASES = [
    Case("fio direct read", COLD_LOAD, "ceiling", external=read),
    Case("fio direct write", SAVE, "ceiling", external=write, saves_checked=False),
    Case("fio direct read", ASSIGN_COLD, "ceiling", external=read, **FLASHPACK_INPUT),
    Case("fio direct read", SHARDS_COLD, "ceiling", external=read),
    Case("fio direct read", ONE_COLD, "ceiling", external=read),
    Case("fio direct write", PACK, "ceiling", external=write, saves_checked=False),
]
