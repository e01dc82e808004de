"""What is under way when the process ends, or forks, is ended in good order."""

from __future__ import annotations

from pathlib import Path

import helpers
import numpy as np
import penstock
import pytest

SLOW_SAVE = """
    import os, signal, sys, threading, time
    import numpy, penstock

    path = sys.argv[1]
    job = penstock.save_async(
        {"x": numpy.ones(2**25)}, path, method="direct", block_size="64KiB", queue_depth=1, threads=1, backend="threads"
    )
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exit") / "model.safetensors"
    penstock.save({f"t{i}": np.ones(2**20) for i in range(4)}, path, durable=False)
    return path


@pytest.mark.parametrize(
    "work",
    [
        "penstock.load(path, framework='numpy', cache='direct')",
        "penstock.load(path, framework='numpy', cache='direct', progress=lambda done, total: sum(range(1000)))",
        "list(penstock.stream(path, framework='numpy', cache='direct'))",
        "penstock.open(path, 'numpy')['t0'][1:3]",
        "penstock.verify(path)",
        "penstock.save_async({'x': numpy.ones(2**18)}, f'{path}{threading.get_ident()}.safetensors').wait()",
    ],
)
def test_daemon_threads_do_not_abort_the_process(file: Path, work: str) -> None:
    script = f"""
    import sys, threading, time
    import numpy, penstock

    path = sys.argv[1]
    begun = threading.Semaphore(0)

    def run():
        while True:
            {work}
            begun.release()

    for _ in range(3):
        threading.Thread(target=run, daemon=True).start()
    for _ in range(6):
        begun.acquire()
    time.sleep(float(sys.argv[2]))
    """
    for delay in ("0", "0.01"):
        result = helpers.run_python(script, str(file), delay, check=False)
        assert (result.returncode, result.stderr) == (0, "")


def test_threads_that_come_back_after_the_interpreter_has_gone_are_left_asleep(file: Path) -> None:
    script = """
    import ctypes, sys, threading
    import penstock

    path = sys.argv[1]
    slowly = {"block_size": "64KiB", "queue_depth": 1, "threads": 1, "backend": "threads"}
    begun = threading.Semaphore(0)

    def run():
        while True:
            release = lambda done, total: begun.release()
            penstock.load(path, framework="numpy", cache="direct", progress=release, **slowly)

    libc = ctypes.CDLL(None)
    libc.on_exit(libc.sleep, None)  # is called with the exit status: a second, when Python has ended
    for _ in range(3):
        threading.Thread(target=run, daemon=True).start()
    for _ in range(6):
        begun.acquire()
    sys.exit(1)
    """
    result = helpers.run_python(script, str(file), check=False)
    assert (result.returncode, result.stderr) == (1, "")


def test_a_save_that_is_interrupted_at_exit_is_told(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    script = (
        SLOW_SAVE
        + """
    import atexit
    atexit.register(lambda: threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start())
    """
    )
    result = helpers.run_python(script, str(path), check=False)
    assert f"{path}: the save was interrupted and not written" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("KeyboardInterrupt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", ["sys.exit(7)", "del job; sys.exit(7)", "penstock._job._running.clear(); sys.exit(7)"])
def test_a_fork_does_not_wait_for_its_parents_saves(tmp_path: Path, end: str) -> None:
    path = tmp_path / "model.safetensors"
    script = (
        SLOW_SAVE
        + f"""
    child = os.fork()
    if child == 0:
        {end}
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), job.done)
    job.cancel()
    """
    )
    assert helpers.run_python(script, str(path)).stdout.split() == ["7", "False"]


def test_a_fork_cannot_wait_for_its_parents_save(tmp_path: Path) -> None:
    script = (
        SLOW_SAVE
        + """
    child = os.fork()
    if child == 0:
        try:
            job.wait()
        except penstock.ArgumentError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    job.cancel()
    """
    )
    result = helpers.run_python(script, str(tmp_path / "model.safetensors"))
    assert result.stdout.strip() == "the save belongs to the process that this one was forked from"


def test_what_is_still_held_at_exit_is_no_leak(file: Path) -> None:
    script = """
    import sys, threading
    import penstock

    loaded = threading.Event()

    def hold():
        tensors = penstock.load(sys.argv[1], framework="numpy", cache="direct")
        loaded.set()
        threading.Event().wait()
        del tensors

    threading.Thread(target=hold, daemon=True).start()
    loaded.wait()
    """
    assert helpers.run_python(script, str(file)).stderr == ""
