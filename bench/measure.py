"""One measurement in a fresh process: prepares, says "ready", waits for a line on stdin, works, says "stopped", and
prints one JSON line.

The programs of bench/native speak the same protocol. Times, processor seconds and memory are those between the line and
the end of the work, the touching of every page included; checking the result comes after.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from cases import Race, Task, Unfinished, find_case


class Probe:
    """Wall clock, processor time and memory of this process over a `with` block."""

    def __enter__(self) -> Probe:
        Path("/proc/self/clear_refs").write_text("5")  # restarts VmHWM
        self._memory = memory_kib()
        self._moved = moved_bytes()
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self._begin = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._begin
        usage = resource.getrusage(resource.RUSAGE_SELF)
        moved = moved_bytes()
        before, after = self._memory, memory_kib()
        print("stopped", flush=True)
        self.result = {
            "seconds": seconds,
            "cpu_seconds": usage.ru_utime + usage.ru_stime - self._usage.ru_utime - self._usage.ru_stime,
            "major_faults": usage.ru_majflt - self._usage.ru_majflt,
            "minor_faults": usage.ru_minflt - self._usage.ru_minflt,
            "peak_bytes": 1024 * (after["VmHWM"] - before["VmRSS"]),
            "anonymous_bytes": 1024 * (after["RssAnon"] - before["RssAnon"]),
            "file_mapped_bytes": 1024 * (after["RssFile"] - before["RssFile"]),
            "anonymous_bytes_before": 1024 * before["RssAnon"],
            "file_bytes_before": 1024 * before["RssFile"],
            "io_read_bytes": moved["read_bytes"] - self._moved["read_bytes"],
            "io_written_bytes": moved["write_bytes"] - self._moved["write_bytes"],
        }


def memory_kib() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.startswith(("Vm", "Rss")))
    return {field[0].rstrip(":"): int(field[1]) for field in fields}


def moved_bytes() -> dict[str, int]:
    """What this process had the drive read and write, in /proc/self/io's own words."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return {line.split(":")[0]: int(line.split(":")[1]) for line in lines}


def warm_up() -> None:
    """Runs what touches tensors once: else its code would be read from the drive while it is timed."""
    import torch

    from tensors import touch_every_page

    touch_every_page({"": torch.zeros(64, 64, dtype=torch.bfloat16)})


def measure(action: Any, race: Race, verify: bool) -> dict[str, Any]:
    from tensors import checksum, touch_every_page

    if race.touches:
        warm_up()
    page_sample = None
    times = []
    tensors: Any = None
    with Probe() as probe:
        for _ in range(race.repeats):
            tensors = None  # what the last repeat gave is let go of outside of the clock
            begin = time.perf_counter()
            tensors = action()
            if race.touches:
                page_sample = touch_every_page(tensors)
            times.append(time.perf_counter() - begin)
    result: dict[str, Any] = dict(probe.result)
    if race.repeats > 1:
        result.update(seconds=median(times), first_seconds=times[0])
    if race.touches:
        result["page_sample"] = page_sample
    if isinstance(tensors, Unfinished):
        tensors.finish()
    elif verify and not race.saves and tensors is not None:
        result["checksum"] = checksum(tensors)
    return result


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    case = find_case(task.case)
    if task.make_input_from:
        assert case.make_input is not None
        case.make_input(task.make_input_from, task.file)
        return
    if task.read_back:
        from tensors import checksum

        assert case.read_back is not None
        print(checksum(case.read_back(task.file)))
        return
    assert case.start is not None
    import numpy  # noqa: F401  used by the touching; its import is not what is measured

    action = case.start(task)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(measure(action, case.race, task.verify)), flush=True)


if __name__ == "__main__":
    main()
