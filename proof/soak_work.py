"""One process of the soak: threads that do anything to the same files as all others, and rest now and then.

Every tensor of a checkpoint is made of one number, its version: a reader sees whether all bytes are of one save.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import penstock
import torch

MIB = 1 << 20
SHAPES = {"a": (512, 256), "b": (1000, 33), "c": (7,), "d": (300, 400)}
SUFFIXES = ("safetensors", "pt", "flashpack")
SET = "set.safetensors"
CHILD_PATIENCE = 60.0


class Interrupted(KeyboardInterrupt):
    """As by Ctrl-C, in a thread."""


class WrongError(Exception):
    """A byte that no save has written."""


def tensors_of(version: int) -> dict[str, torch.Tensor]:
    return {
        name: (torch.arange(shape[0] * (shape[1] if len(shape) > 1 else 1)) * 31 + version).reshape(shape)
        for name, shape in SHAPES.items()
    }


def version_of(tensor: torch.Tensor) -> int:
    return int(tensor.flatten()[0])


def check(tensors: dict[str, torch.Tensor]) -> None:
    """All there, and of one version."""
    if set(tensors) != set(SHAPES):
        raise WrongError(f"tensors {sorted(tensors)}")
    expected = tensors_of(version_of(tensors["a"]))
    for name, tensor in tensors.items():
        if not torch.equal(tensor, expected[name]):
            raise WrongError(f"tensor {name} is not of version {version_of(tensors['a'])}")


def prepare(folder: Path) -> None:
    for suffix in SUFFIXES:
        penstock.save(tensors_of(1), folder / f"shared.{suffix}", durable=False)
    penstock.save(tensors_of(1), folder / SET, max_shard_size=MIB, durable=False)


def look_for_leftovers(folder: Path) -> list[str]:
    """After one more save of each: what killed ones left goes then."""
    prepare(folder)
    names = {f"shared.{suffix}" for suffix in SUFFIXES} | {"small"}
    left = [
        name
        for name in os.listdir(folder)
        if name not in names and not name.startswith("set-") and not name.startswith(f"{SET}.")
    ]
    return [f"left {name}" for name in left]


class Worker:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.folder = Path(order["folder"])
        self.disk = None if order["disk"] is None else Path(order["disk"])
        self.private = self.folder / f"own-{order['name']}"
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []
        self.rests: list[dict[str, float]] = []
        self.lock = threading.Lock()
        self.versions = random.Random(order["seed"])
        self.actions: dict[str, Callable[[random.Random], None]] = {
            "loads": self.load,
            "loads into memory that is there": self.load_into,
            "streams": self.stream,
            "streams closed half way": self.close_stream,
            "slices": self.slice,
            "saves": self.save,
            "saves in the background": self.save_async,
            "saves of sets of shards": self.save_set,
            "loads of sets of shards": self.load_set,
            "loads that are cancelled": self.cancel_load,
            "saves that are cancelled": self.cancel_save,
            "seals and verifications": self.seal,
            "conversions": self.convert,
            "truncated files": self.truncated,
            "unreadable files": self.unreadable,
        }
        if self.disk is not None:
            self.actions["full filesystems"] = self.full
        if order["forks"]:
            self.actions["forks"] = self.fork
            self.actions["savers that are killed"] = self.kill

    # --- the threads ---

    def run(self) -> None:
        self.private.mkdir()
        threads = self.order["threads"]
        self.barrier = threading.Barrier(threads + 1)
        self.ends = False
        workers = [threading.Thread(target=self.work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        began = time.monotonic()
        for number in range(1, self.order["rests"] + 1):
            self.until = began + self.order["seconds"] * number / self.order["rests"]
            self.barrier.wait()  # go
            self.barrier.wait()  # all rest
            self.rests.append(self.measure())
        self.ends = True
        self.barrier.wait()
        for worker in workers:
            worker.join()
        shutil.rmtree(self.private)

    def work(self, number: int) -> None:
        choose = random.Random(self.order["seed"] * 100 + number)
        names = list(self.actions)
        while True:
            self.barrier.wait()
            if self.ends:
                return
            while time.monotonic() < self.until:
                self.do(choose.choice(names), choose)
            self.barrier.wait()

    def do(self, name: str, choose: random.Random) -> None:
        try:
            self.actions[name](choose)
        except Exception as problem:
            with self.lock:
                self.findings.append(f"{self.order['name']}: {name}: {type(problem).__name__}: {str(problem)[:300]}")
        with self.lock:
            self.counts[name] += 1

    def measure(self) -> dict[str, float]:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        time.sleep(0.05)  # threads that free what was replaced
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        threads = len(os.listdir("/proc/self/task"))
        return {
            "MiB": pages * os.sysconf("SC_PAGE_SIZE") / MIB,
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": threads,
        }

    # --- what they do ---

    def shared(self, choose: random.Random) -> Path:
        return self.folder / f"shared.{choose.choice(SUFFIXES)}"

    def own(self, choose: random.Random) -> Path:
        return self.private / f"{threading.get_ident()}.{choose.choice(SUFFIXES)}"

    def version(self, choose: random.Random) -> int:
        return choose.randrange(1 << 30)

    def again(self, action: Callable[[], Any]) -> Any:
        """What is replaced while it is read may say so."""
        for _ in range(100):
            with contextlib.suppress(penstock.ChangedError):
                return action()
        raise WrongError("changes again and again")

    def load(self, choose: random.Random) -> None:
        cache = choose.choice(("auto", "copy", "direct", "buffered", "mmap"))
        path = self.shared(choose)
        check(self.again(lambda: penstock.load(path, cache=cache)))

    def load_into(self, choose: random.Random) -> None:
        target = {name: torch.zeros(shape, dtype=torch.int64) for name, shape in SHAPES.items()}
        path = self.shared(choose)
        self.again(lambda: penstock.load_into(target, path))
        check(target)

    def stream(self, choose: random.Random) -> None:
        path = self.shared(choose)
        check(self.again(lambda: dict(penstock.stream(path))))

    def close_stream(self, choose: random.Random) -> None:
        stream = penstock.stream(self.shared(choose), max_buffer="256KiB")
        with contextlib.closing(iter(stream)) as tensors:
            for name, tensor in tensors:
                if not torch.equal(tensor, tensors_of(version_of(tensor))[name]):
                    raise WrongError(f"tensor {name} of a stream")
                if choose.random() < 0.5:
                    break

    def slice(self, choose: random.Random) -> None:
        def rows() -> None:
            with penstock.open(path) as file:
                first = version_of(file["c"][:1])
                begin = choose.randrange(500)
                if not torch.equal(file["a"][begin : begin + 9], tensors_of(first)["a"][begin : begin + 9]):
                    raise WrongError("rows of a tensor")

        path = self.shared(choose)
        self.again(rows)

    def save(self, choose: random.Random) -> None:
        path = choose.choice((self.shared(choose), self.own(choose)))
        penstock.save(tensors_of(self.version(choose)), path, durable=choose.random() < 0.1)

    def save_async(self, choose: random.Random) -> None:
        job = penstock.save_async(tensors_of(self.version(choose)), self.own(choose), durable=False)
        if choose.random() < 0.3:
            job.cancel()
            with contextlib.suppress(penstock.CancelledError):
                job.wait()
        else:
            job.wait()

    def save_set(self, choose: random.Random) -> None:
        size = choose.choice((MIB // 2, MIB, 2 * MIB))
        penstock.save(tensors_of(self.version(choose)), self.folder / SET, max_shard_size=size, durable=False)

    def load_set(self, choose: random.Random) -> None:
        path = self.folder / f"{SET}.index.json"
        if path.exists():
            with contextlib.suppress(penstock.NotFoundError):  # a save made one file of it
                check(self.again(lambda: penstock.load(path)))

    def interrupt(self, choose: random.Random) -> Callable[[int, int], None]:
        left = choose.randrange(3)

        def progress(done: int, total: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Interrupted

        return progress

    def cancel_load(self, choose: random.Random) -> None:
        with contextlib.suppress(Interrupted):
            path = self.shared(choose)
            self.again(lambda: check(penstock.load(path, progress=self.interrupt(choose))))

    def cancel_save(self, choose: random.Random) -> None:
        path = self.own(choose)
        with contextlib.suppress(Interrupted):
            penstock.save(tensors_of(self.version(choose)), path, durable=False, progress=self.interrupt(choose))
        if path.exists():
            check(penstock.load(path))

    def seal(self, choose: random.Random) -> None:
        path = self.own(choose)
        penstock.save(tensors_of(self.version(choose)), path, durable=False)
        penstock.seal(path)
        if not penstock.verify(path).ok:
            raise WrongError("a file that was just sealed")

    def convert(self, choose: random.Random) -> None:
        target = self.own(choose)
        path = self.shared(choose)
        self.again(lambda: penstock.convert(path, target, overwrite=True))
        check(penstock.load(target))

    # --- faults ---

    def copy_of(self, choose: random.Random) -> Path:
        source = self.shared(choose)
        return Path(shutil.copyfile(source, self.private / f"copy-{threading.get_ident()}{source.suffix}"))

    def truncated(self, choose: random.Random) -> None:
        path = self.copy_of(choose)
        os.truncate(path, choose.randrange(path.stat().st_size))
        try:
            penstock.load(path)
        except penstock.Error:
            return
        finally:
            path.unlink()
        raise WrongError("a truncated file was read")

    def unreadable(self, choose: random.Random) -> None:
        path = choose.choice((self.folder / "no" / "x.safetensors", self.folder, self.private / "x" / "y.pt"))
        if path == self.folder:
            path = self.private / "fifo.safetensors"
            with contextlib.suppress(FileExistsError):
                os.mkfifo(path)
        try:
            penstock.load(path)
        except penstock.Error:
            return
        raise WrongError("what is no file was read")

    def full(self, choose: random.Random) -> None:
        assert self.disk is not None
        path = self.disk / f"{self.order['name']}-{threading.get_ident()}.safetensors"
        tensors = {**tensors_of(self.version(choose)), "e": torch.zeros(choose.randrange(8 * MIB), dtype=torch.uint8)}
        with contextlib.suppress(penstock.NoSpaceError):
            penstock.save(tensors, path, durable=False)
        if path.exists():
            loaded = penstock.load(path, cache="copy")
            loaded.pop("e", None)
            check(loaded)
        if choose.random() < 0.3:
            path.unlink(missing_ok=True)

    def fork(self, choose: random.Random) -> None:
        path = self.shared(choose)
        self.wait(self.child(lambda: check(self.again(lambda: penstock.load(path)))))

    def child(self, action: Callable[[], None]) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
            pid = os.fork()
        if pid != 0:
            return pid
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)

    def wait(self, pid: int) -> None:
        deadline = time.monotonic() + CHILD_PATIENCE
        while time.monotonic() < deadline:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found == pid:
                code = os.waitstatus_to_exitcode(status)
                if code != 0:
                    raise WrongError(f"a child of fork() ended with {code}")
                return
            time.sleep(0.005)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise WrongError("a child of fork() hung")

    def kill(self, choose: random.Random) -> None:
        path = choose.choice((self.shared(choose), self.folder / SET))
        size = {"max_shard_size": MIB} if path.name == SET else {}

        def save() -> None:
            for version in self.versions_from(choose):
                penstock.save(tensors_of(version), path, durable=False, **size)

        pid = self.child(save)
        time.sleep(choose.random() * 0.1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if path.name != SET:
            check(self.again(lambda: penstock.load(path)))

    def versions_from(self, choose: random.Random) -> Iterator[int]:
        while True:
            yield self.version(choose)


def main() -> int:
    torch.set_num_threads(1)
    order = json.loads(sys.argv[1])
    worker = Worker(order)
    worker.run()
    print(json.dumps({"counts": worker.counts, "rests": worker.rests, "findings": worker.findings[:20]}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
