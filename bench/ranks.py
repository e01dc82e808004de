"""Runs groups of ranks: fresh processes that load one checkpoint together, cold, in interleaved rounds.

The time of a group is from the first rank's begin to the last rank's end, by the clock that all processes share.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import machine
import model
from rank_ways import BY_KEY, RankTask, Way
from runner import MEMORY_REST_SECONDS, MeasurementError, MemoryWatch, with_peaks

MEASURE = Path(__file__).resolve().parent / "rank_measure.py"
LONGEST_SECONDS = 400  # of a group, from its start on
STOPPED = "stopped before the end"


@dataclass(frozen=True)
class Checkpoint:
    """Files that are loaded together."""

    name: str
    files: list[Path]
    nbytes: int  # of the tensors


@dataclass(frozen=True)
class Entry:
    """Who loads what: a competitor, a checkpoint, and a number of ranks."""

    key: str
    way: Way
    checkpoint: Checkpoint
    ranks: int = 1
    plan: dict[str, int] = field(default_factory=dict)
    experts: tuple[int, int, int] | None = None
    max_batch_bytes: int | None = None

    @property
    def needs(self) -> list[str]:
        return [self.way.needs, *([self.way.needs_of_ranks] if self.ranks > 1 and self.way.needs_of_ranks else [])]


@dataclass
class Setting:
    """Where and with what groups are run."""

    directory: Path
    python: str  # of penstock
    peer_python: str
    idle_seconds: float = 1.0
    drop_everything: bool = False
    last_end: float = 0.0

    def python_for(self, way: Way) -> str:
        return self.python if way.role == "ours" else self.peer_python


def write_checkpoint(name: str, directory: Path, shards: list[list[model.Tensor]]) -> Checkpoint:
    """Shards as Hugging Face names them; what is there already is kept."""
    count = len(shards)
    files = [directory / f"model-{number + 1:05}-of-{count:05}.safetensors" for number in range(count)]
    parts = [model.ensure(file, shard, seed) for seed, (file, shard) in enumerate(zip(files, shards, strict=True))]
    return Checkpoint(name, files, sum(part.nbytes for part in parts))


def tasks_of(entry: Entry, rendezvous: str, verify: bool) -> list[RankTask]:
    first = RankTask(
        entry.way.key,
        list(map(str, entry.checkpoint.files)),
        0,
        entry.ranks,
        rendezvous,
        entry.plan,
        entry.experts,
        entry.max_batch_bytes,
        verify,
    )
    return [replace(first, rank=rank) for rank in range(entry.ranks)]


def measure(entry: Entry, setting: Setting, verify: bool) -> dict[str, Any]:
    """One measurement of a group."""
    with tempfile.TemporaryDirectory() as meeting:
        tasks = tasks_of(entry, os.path.join(meeting, "rendezvous"), verify)
        command = [setting.python_for(entry.way), str(MEASURE)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        pipes["env"] = environment_of(entry.ranks)
        processes = [subprocess.Popen([*command, json.dumps(asdict(task))], **pipes) for task in tasks]
        limit = threading.Timer(LONGEST_SECONDS, end_all, [processes])
        limit.start()
        try:
            results = talk(processes, lambda: settle(entry.checkpoint, setting))
        finally:
            limit.cancel()
            end_all(processes)
            setting.last_end = time.monotonic()
    return combine(results, entry.checkpoint.nbytes)


def environment_of(count: int) -> dict[str, str]:
    """Several ranks have one thread each for computing, as torchrun starts them."""
    return ({"OMP_NUM_THREADS": "1"} if count > 1 else {}) | os.environ


def end_all(processes: list[subprocess.Popen[str]]) -> None:
    """Those that have ended are left as they are."""
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()


def settle(checkpoint: Checkpoint, setting: Setting) -> None:
    """Cold files, and the rest that runner.py gives everybody who takes memory."""
    machine.drop_page_cache(checkpoint.files, setting.drop_everything)
    left = sum(map(machine.resident_bytes, checkpoint.files))
    if left > checkpoint.nbytes // 100:
        raise MeasurementError(f"{checkpoint.name}: {left} bytes stay in the page cache, so it can't be loaded cold")
    time.sleep(max(setting.idle_seconds, MEMORY_REST_SECONDS - (time.monotonic() - setting.last_end)))


def talk(processes: list[subprocess.Popen[str]], before_start: Callable[[], None]) -> list[dict[str, Any]]:
    """The driver's side of the protocol: all are ready before one starts. Gives the result of every rank."""
    for rank, process in enumerate(processes):
        read_until(process, rank, "ready")
    before_start()
    watches = [MemoryWatch(process.pid) for process in processes]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    with ThreadPoolExecutor(len(processes)) as pool:  # whoever stops first is sampled no longer
        return list(pool.map(result_of, processes, watches, range(len(processes))))


def result_of(process: subprocess.Popen[str], watch: MemoryWatch, rank: int) -> dict[str, Any]:
    try:
        read_until(process, rank, "stopped")
    finally:
        sampled = watch.finish()
    return with_peaks(json.loads(last_line(process, rank)), sampled)


def read_until(process: subprocess.Popen[str], rank: int, word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            return
    raise MeasurementError(f"rank {rank} ended with exit code {process.wait()} before it said {word!r}")


def last_line(process: subprocess.Popen[str], rank: int) -> str:
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    if process.wait() != 0 or not lines:
        raise MeasurementError(f"rank {rank} ended with exit code {process.wait()} and no result")
    return str(lines[-1])


def combine(results: list[dict[str, Any]], nbytes: int) -> dict[str, Any]:
    """Of a group: what the ranks did together, and the memory of the one that had most."""
    on_drive = [result["bytes_on_drive"] for result in results]
    return {
        "seconds": max(result["end"] for result in results) - min(result["begin"] for result in results),
        "bytes": nbytes,
        "cpu_seconds": sum(result["cpu_seconds"] for result in results),
        "kept_bytes": max(result["kept_bytes"] for result in results),
        "peak_bytes": max(result["peak_bytes"] for result in results),
        "peak_anonymous_bytes": max(result["peak_anonymous_bytes"] for result in results),
        "io_read_bytes": sum(result["io_read_bytes"] for result in results),
        "bytes_on_drive": None if None in on_drive else sum(on_drive),
        "by_rank": results,
    }


Results = dict[str, list[dict[str, Any]]]  # by the key of an entry, one per round


def run_rounds(
    entries: list[Entry], setting: Setting, rounds: int, seed: int, left_out: dict[str, str]
) -> Iterator[tuple[Entry, dict[str, Any], int]]:
    """Yields every measurement with its round. Who fails goes to `left_out`, and takes no further part."""
    order = random.Random(seed)
    for number in range(rounds):
        for entry in order.sample(entries, len(entries)):
            if entry.key in left_out:
                continue
            try:
                yield entry, measure(entry, setting, verify=number == 0), number
            except MeasurementError as error:
                print(f"[bench] FAILED, and left out: {entry.key}: {error}", flush=True)
                left_out[entry.key] = f"failed: {error}"


def run(entries: list[Entry], setting: Setting, rounds: int, seed: int, left_out: dict[str, str]) -> Results:
    """All rounds, told line by line. Of who failed nothing is kept; Ctrl-C ends it early, which is left out aloud."""
    results: Results = {}
    total, begin = rounds * len(entries), time.monotonic()
    try:
        for done, (entry, result, number) in enumerate(run_rounds(entries, setting, rounds, seed, left_out), start=1):
            results.setdefault(entry.key, []).append(result)
            to_go = (time.monotonic() - begin) / done * (total - done) / 60
            tell(f"{done:3}/{total}  round {number + 1}/{rounds}  {entry.key}", result, to_go)
    except KeyboardInterrupt:
        print(f"\n[bench] {STOPPED}; this is what was measured until then", flush=True)
        left_out["the rest"] = STOPPED
    return {key: values for key, values in results.items() if key not in left_out}


def tell(what: str, result: dict[str, Any], minutes_to_go: float) -> None:
    milliseconds = 1000 * result["seconds"]
    print(f"[bench] {what:78} {milliseconds:9.1f} ms   {minutes_to_go:.1f} minutes to go", flush=True)


def without_those_that_cannot_run(entries: list[Entry], setting: Setting) -> tuple[list[Entry], dict[str, str]]:
    """Tries what the entries need, once per Python, and says aloud what is left out. Gives the others, and reasons."""
    problems: dict[tuple[str, str], str] = {}
    left_out: dict[str, str] = {}
    for entry in entries:
        python = setting.python_for(entry.way)
        for needs in entry.needs:
            if (python, needs) not in problems:
                tried = subprocess.run([python, "-c", needs], cwd=MEASURE.parent, capture_output=True, text=True)
                problems[python, needs] = tried.stderr.strip().splitlines()[-1] if tried.returncode else ""
            if problems[python, needs] and entry.key not in left_out:
                left_out[entry.key] = problems[python, needs]
                print(f"[bench] left out: {entry.key} ({left_out[entry.key]})", flush=True)
    return [entry for entry in entries if entry.key not in left_out], left_out


def entry_of(key: str, way: str, checkpoint: Checkpoint, ranks: int = 1, **options: Any) -> Entry:
    return Entry(key, BY_KEY[way], checkpoint, ranks, **options)
