"""A model of loads from a drive to a device: which rate follows from drive, link, block size and depth.

A slot is a pinned block. It reads its block from the drive, copies it to the device, and is free again:

    request --latency--> the drive's bandwidth --latency--> the link --> free

`closed_rate` is the formula; `simulate` plays the same queues event by event. A drive may serve requests one after the
other, which is the formula's assumption and the best case, or all at once with equal parts of its bandwidth. Then
requests tend to end together, and it takes more of them to keep drive and link busy.

    bench/pipeline.py                                                  # print the table
    bench/pipeline.py --document docs/gpu.md --chart docs/images       # write it there, and draw the curves
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

GB = 1e9  # rates of drives and links are given in these
MIB = 1 << 20
DRIVES = (7 * GB, 14 * GB, 28 * GB, 56 * GB)
LINKS = {"PCIe 4": 25 * GB, "PCIe 5": 50 * GB}  # what is left of 16 lanes for data
ENOUGH = 0.95  # of what drive and link allow
MOST_SLOTS = 64
CYCLES = 20  # of every slot that a simulation counts, after as many in which the pipeline settles
BEGIN, END = "<!-- pipeline: begin -->", "<!-- pipeline: end -->"


@dataclass(frozen=True)
class Pipeline:
    """Rates in bytes per second, times in seconds. The defaults are those of a load."""

    drive: float
    link: float
    block: int = 2 * MIB
    slots: int = 24  # blocks that are being read or copied, of all threads together
    drive_latency: float = 250e-6
    copy_latency: float = 10e-6

    @property
    def pinned(self) -> int:
        return self.slots * self.block

    @property
    def limit(self) -> float:
        """What no depth can exceed."""
        return min(self.drive, self.link)


def closed_rate(pipeline: Pipeline) -> float:
    """The least of what drive, link and slots allow, each on its own."""
    latency = pipeline.drive_latency + pipeline.copy_latency
    slot_seconds = latency + pipeline.block / pipeline.drive + pipeline.block / pipeline.link
    return min(pipeline.limit, pipeline.slots * pipeline.block / slot_seconds)


class DriveInOrder:
    """Requests one after the other, each with the whole bandwidth."""

    def __init__(self, seconds_alone: float) -> None:
        self._seconds_alone = seconds_alone
        self._ends: deque[float] = deque()
        self._free = 0.0

    def add(self, now: float) -> None:
        self._free = max(self._free, now) + self._seconds_alone
        self._ends.append(self._free)

    def next_end(self) -> float:
        return self._ends[0] if self._ends else float("inf")

    def take(self) -> None:
        self._ends.popleft()


class DriveShared:
    """All requests at once, each with an equal part of the bandwidth.

    Progress is what a request that was there from the start would have got, in seconds of the whole drive; a request
    ends when that has grown by as much as it needs alone. So they end in the order in which they came.
    """

    def __init__(self, seconds_alone: float) -> None:
        self._seconds_alone = seconds_alone
        self._ends: deque[float] = deque()  # of progress
        self._progress = 0.0
        self._now = 0.0

    def add(self, now: float) -> None:
        if self._ends:
            self._progress += (now - self._now) / len(self._ends)
        self._now = now
        self._ends.append(self._progress + self._seconds_alone)

    def next_end(self) -> float:
        if not self._ends:
            return float("inf")
        return self._now + max(0.0, self._ends[0] - self._progress) * len(self._ends)

    def take(self) -> None:
        self._now = self.next_end()
        self._progress = self._ends.popleft()


Drive = DriveInOrder | DriveShared


def simulate(pipeline: Pipeline, blocks: int, kind: type[Drive] = DriveInOrder) -> list[float]:
    """When each of so many blocks has arrived on the device."""
    drive = kind(pipeline.block / pipeline.drive)
    at_drive: deque[float] = deque()  # when the latency of requests is over
    arrivals: deque[float] = deque()  # of copies that are started; they end in order
    arrived: list[float] = []
    link_free, now, begun = 0.0, 0.0, 0
    while len(arrived) < blocks:
        while begun < min(blocks, len(arrived) + pipeline.slots):
            at_drive.append(now + pipeline.drive_latency)
            begun += 1
        request = at_drive[0] if at_drive else float("inf")
        arrival = arrivals[0] if arrivals else float("inf")
        now = min(request, arrival, drive.next_end())
        if now == arrival:
            arrived.append(arrivals.popleft())
        elif now == request:
            drive.add(at_drive.popleft())
        else:
            drive.take()
            link_free = max(now + pipeline.copy_latency, link_free) + pipeline.block / pipeline.link
            arrivals.append(link_free)
    return arrived


def simulated_rate(pipeline: Pipeline, kind: type[Drive] = DriveInOrder) -> float:
    """Once it flows. Between two arrivals of the same slot, as what is on the way then is alike; not at the end, when
    nothing new is begun.
    """
    counted = CYCLES * pipeline.slots
    arrived = simulate(pipeline, 2 * counted + pipeline.slots, kind)
    return counted * pipeline.block / (arrived[2 * counted - 1] - arrived[counted - 1])


def slots_needed(pipeline: Pipeline, rate: Callable[[Pipeline], float]) -> int:
    """From how many slots on, up to MOST_SLOTS, there is always ENOUGH of what drive and link allow."""
    needed = MOST_SLOTS + 1
    while needed > 1 and rate(replace(pipeline, slots=needed - 1)) >= ENOUGH * pipeline.limit:
        needed -= 1
    if needed > MOST_SLOTS:
        raise ValueError(f"{MOST_SLOTS} slots are not enough for {pipeline}")
    return needed


def shared_rate(pipeline: Pipeline) -> float:
    return simulated_rate(pipeline, DriveShared)


def table() -> str:
    """Markdown: what each drive and link can do, what that takes, and what the defaults make of it."""
    lines = [
        "| drive | link | at most | depth, in order | depth, shared | pinned | the defaults reach |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for drive in DRIVES:
        for name, link in LINKS.items():
            pipeline = Pipeline(drive, link)
            in_order, shared = slots_needed(pipeline, closed_rate), slots_needed(pipeline, shared_rate)
            pinned = max(in_order, shared) * pipeline.block // MIB
            reached = min(closed_rate(pipeline), shared_rate(pipeline))
            lines.append(
                f"| {drive / GB:g} GB/s | {name}, {link / GB:g} GB/s | {pipeline.limit / GB:g} GB/s | {in_order} "
                f"| {shared} | {pinned} MiB | {reached / GB:.1f} GB/s |"
            )
    return "\n".join(lines)


def update(document: Path) -> None:
    """Puts the table between the markers of a page."""
    text = document.read_text()
    if BEGIN not in text or END not in text:
        raise SystemExit(f"[bench] {document} has no place for the table: it needs the lines {BEGIN} and {END}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    document.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--document", type=Path, metavar="FILE", help="write the table between its markers")
    parser.add_argument("--chart", type=Path, metavar="DIR", help="draw the curves for light and dark pages there")
    arguments = parser.parse_args()
    print(table())
    if arguments.document:
        update(arguments.document)
    if arguments.chart:
        import pipeline_chart

        for path in pipeline_chart.draw(arguments.chart):
            print(f"[bench] chart: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
