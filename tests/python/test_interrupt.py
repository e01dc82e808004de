"""Ctrl-C arrives as KeyboardInterrupt in the middle of the work, stops it, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import helpers
import penstock
import pytest
import torch

# Sends SIGINT to the process once `begun()` says that the work is under way.
PRELUDE = """
    import os, signal, sys, threading, time
    import numpy, penstock

    SLOW = dict(block_size="64KiB", queue_depth=1, threads=1, backend="threads")
    NUMPY = dict(framework="numpy")
    path = sys.argv[1]

    def interrupt_when(begun):
        def watch():
            while not begun():
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=watch, daemon=True).start()

    def bytes_moved(counter):
        return int(dict(line.split(": ") for line in open("/proc/self/io"))[counter])

    def moving(counter):
        start = bytes_moved(counter)
        return lambda: bytes_moved(counter) > start + 2**20
"""
NBYTES = 384 * 2**20


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "model.safetensors"
    penstock.save({f"t{i}": torch.zeros(NBYTES // 12, dtype=torch.uint8) for i in range(12)}, path, durable=False)
    return path


@pytest.mark.parametrize("cache", ["direct", "buffered"])
def test_a_load_is_interrupted(big: Path, cache: str) -> None:
    script = (
        PRELUDE
        + f"""
    penstock.load(path, select="t0", **NUMPY)
    start = bytes_moved("rchar")
    interrupt_when(moving("rchar"))
    try:
        penstock.load(path, cache="{cache}", **SLOW, **NUMPY)
        print("loaded")
    except KeyboardInterrupt:
        print("interrupted", bytes_moved("rchar") - start < {NBYTES})
    print(len(penstock.load(path, select=["t0", "t1"], cache="buffered", **NUMPY)))
    """
    )
    assert helpers.run_python(script, str(big)).stdout.splitlines() == ["interrupted True", "2"]


def test_a_stream_is_interrupted(big: Path) -> None:
    script = (
        PRELUDE
        + """
    seen = 0
    interrupt_when(lambda: seen)
    try:
        for name, tensor in penstock.stream(path, cache="direct", max_buffer="1MiB", **SLOW, **NUMPY):
            seen += 1
        print("streamed")
    except KeyboardInterrupt:
        print("interrupted", 0 < seen < 12)
    """
    )
    assert helpers.run_python(script, str(big)).stdout.splitlines() == ["interrupted True"]


def test_a_save_is_interrupted_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    script = (
        PRELUDE
        + f"""
    tensor = numpy.ones({NBYTES}, dtype="u1")
    penstock.save({{"x": numpy.ones(1)}}, path)
    interrupt_when(moving("wchar"))
    try:
        penstock.save({{"x": tensor}}, path, method="direct", **SLOW)
        print("saved")
    except KeyboardInterrupt:
        print("interrupted", os.listdir(os.path.dirname(path)))
    print(penstock.load(path, **NUMPY)["x"].tolist())
    """
    )
    assert helpers.run_python(script, str(path)).stdout.splitlines() == ["interrupted ['model.safetensors']", "[1.0]"]


def test_waiting_for_a_job_is_interrupted_and_the_job_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    script = (
        PRELUDE
        + f"""
    job = penstock.save_async({{"x": numpy.ones({NBYTES}, dtype="u1")}}, path, method="direct", **SLOW)
    interrupt_when(moving("wchar"))
    try:
        job.wait()
        print("saved")
    except KeyboardInterrupt:
        print("interrupted", job.done)
    job.wait()
    """
    )
    assert helpers.run_python(script, str(path)).stdout.splitlines() == ["interrupted False"]
    assert penstock.open(path)["x"].shape == (NBYTES,)


def test_an_interrupt_outside_of_python_ends_the_process(big: Path) -> None:
    """Without a handler of the caller's the process ends as any other would: killed by SIGINT."""
    script = (
        PRELUDE
        + """
    penstock.load(path, select="t0", **NUMPY)
    start = bytes_moved("rchar")
    interrupt_when(moving("rchar"))
    penstock.load(path, cache="direct", **SLOW, **NUMPY)
    """
    )
    result = helpers.run_python(script, str(big), check=False)
    assert result.returncode == -2
    assert result.stderr.splitlines()[-1] == "KeyboardInterrupt"
