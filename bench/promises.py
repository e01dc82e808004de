"""The speeds that penstock promises, as ratios of figures measured side by side. The race says which of them hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from model import GIB
from summary import Summary

MIB = 1 << 20


@dataclass(frozen=True)
class Promise:
    """`measure` gives the figure from the summaries of the cases it names; `holds` compares it with the limit."""

    text: str
    cases: tuple[str, ...]
    measure: Callable[..., float]
    limit: float
    at_least: bool = True
    against: tuple[str, ...] = ()  # races all of whose peers are handed on as well, after the cases
    named: str = ""  # a pattern: only peers whose name has it

    def peers(self, summaries: list[Summary]) -> list[Summary]:
        return [
            summary
            for summary in summaries
            if summary.case.role == "peer"
            and summary.case.race.key in self.against
            and re.search(self.named, summary.case.name)
        ]

    def holds(self, figure: float) -> bool:
        return figure >= self.limit if self.at_least else figure <= self.limit


def speed(ours: Summary, other: Summary) -> float:
    return ours.speed_over(other)


def speed_over_best(ours: Summary, *others: Summary) -> float:
    return min(ours.speed_over(other) for other in others)


def cpu_over_near_peers(ours: Summary, *peers: Summary) -> float:
    """Processor time beside the most frugal peer that comes within 2x of our speed; 0 where none does."""
    near = [cpu(ours, peer) for peer in peers if ours.speed_over(peer) <= 2]
    return max(near, default=0)


def difference(one: Summary, other: Summary) -> float:
    """How far apart two are, in percent of the slower."""
    return 100 * (max(one.speed_over(other), other.speed_over(one)) - 1)


def cpu(ours: Summary, other: Summary) -> float:
    return (ours.cpu_seconds or 0) / (other.cpu_seconds or 1)


def cpu_per_gib(ours: Summary) -> float:
    return (ours.cpu_seconds or 0) / (ours.payload_bytes / GIB)


def memory_above_payload(ours: Summary) -> float:
    return ((ours.peak_bytes or 0) - ours.payload_bytes) / MIB


def memory_while_saving(ours: Summary) -> float:
    """The payload is in memory before."""
    return (ours.peak_bytes or 0) / MIB


def milliseconds(ours: Summary) -> float:
    return ours.value


def time_over(ours: Summary, other: Summary) -> float:
    return 1 / ours.speed_over(other)


def cache_left(ours: Summary) -> float:
    return (ours.cache_growth_bytes or 0) / MIB


COLD, REUSED = "cold: penstock.load", "cold-reused: penstock.load"
FIO_READ, FAST = "cold: fio direct read", "cold: fastsafetensors"
WARM, COPIED = "warm: penstock.load", "warm: penstock.load, copied"
SAVED = "save: penstock.save"
PACKED, ASSIGNED, MAPPED = (
    "pack: penstock pack_to_file",
    "assign: penstock assign_from_file",
    "assign-warm: penstock assign_from_file",
)
TORCH_SAVED, LEGACY_SAVED = "torch-save: penstock.save", "torch-save: penstock.save legacy"
TORCH_LOADED, LEGACY_LOADED = "torch-cold: penstock.load", "torch-cold: penstock.load legacy"
TORCH_FIO = "torch-save: fio direct write"
MEMCPY, STILL = "async: memcpy, one core", "train: no checkpoint"
TORCH_MAPPED, TORCH_MANY = "torch-warm: penstock.load, mmap", "torch-many: penstock.load"
SMALL_FILE = "tiny-save: write, fsync, rename"
TINY_SAVED, TINY_LOADED = "tiny-save: penstock pack_to_file", "tiny-load: penstock assign_from_file"


def at_least(text: str, ours: str, other: str, limit: float) -> Promise:
    """A speed over another's."""
    return Promise(text, (ours, other), speed, limit)


def at_most(text: str, cases: tuple[str, ...], measure: Callable[..., float], limit: float) -> Promise:
    return Promise(text, cases, measure, limit, at_least=False)


def over_best(text: str, ours: str, limit: float, races: tuple[str, ...] = (), named: str = "") -> Promise:
    """A speed over that of the best peer: of our race, unless others are named."""
    return Promise(text, (ours,), speed_over_best, limit, against=races or (ours.split(":")[0],), named=named)


def torch_save_promises(what: str, saved: str) -> tuple[Promise, ...]:
    return (
        at_least(f"{what} save: speed over torch.save + fsync", saved, "torch-save: torch.save + fsync", 4.0),
        over_best(f"{what} save: speed over FastPersist's best legacy", saved, 1.4, named="FastPersist legacy"),
        at_least(f"{what} save: speed over fio", saved, TORCH_FIO, 1.1),
        at_most(f"{what} save: processor seconds per GiB", (saved,), cpu_per_gib, 0.3),
        at_most(f"{what} save: memory beyond the payload, MiB", (saved,), memory_while_saving, 64),
    )


PROMISES = (
    at_least("cold load: speed over fio", COLD, FIO_READ, 1.1),
    at_least("cold load: speed over fastsafetensors", COLD, FAST, 1.2),
    at_most("cold load: processor time over fastsafetensors", (COLD, FAST), cpu, 1.0),
    at_least("cold load: speed over safetensors", COLD, "cold: safetensors load_file", 2.0),
    at_most("cold load: memory above the payload, MiB", (COLD,), memory_above_payload, 64),
    at_most("cold load: page cache left behind, MiB", (COLD,), cache_left, 1),
    at_least("cold load, reused memory: speed over fio", REUSED, FIO_READ, 1.1),
    at_most("cold load, reused memory: processor time over fastsafetensors", (REUSED, FAST), cpu, 1 / 3),
    at_least("warm load: speed over safetensors' mmap", WARM, "warm: safetensors load_file", 0.9),
    at_least("warm load, copied: speed over fastsafetensors", COPIED, "warm: fastsafetensors", 1.5),
    at_least("warm load, copied: the same, buffered", COPIED, "warm: fastsafetensors, buffered", 1.5),
    at_least("save: speed over fio", SAVED, "save: fio direct write", 1.1),
    at_least("save: speed over safetensors + fsync", SAVED, "save: safetensors save_file + fsync", 2.5),
    at_most("save: processor seconds per GiB", (SAVED,), cpu_per_gib, 0.3),
    at_least("open 100,000 tensors: speed over safetensors", "open: penstock.open", "open: safetensors safe_open", 2.0),
    at_most("import penstock, ms", ("import: import penstock",), milliseconds, 50),
    at_least("pack: speed over flashpack + fsync", PACKED, "pack: flashpack pack_to_file + fsync", 2.5),
    at_most("pack: memory beyond the payload, MiB", (PACKED,), memory_while_saving, 64),
    at_least("cold assign: speed over flashpack", ASSIGNED, "assign: flashpack assign_from_file", 1.5),
    at_least("cold assign: the same, parallel reader", ASSIGNED, "assign: flashpack, parallel reader", 1.2),
    at_least("warm assign: speed over flashpack's mmap", MAPPED, "assign-warm: flashpack assign_from_file", 1.0),
    at_most("save of three tensors: time over one small file's", (TINY_SAVED, SMALL_FILE), time_over, 1.2),
    at_most("load of three tensors, ms", (TINY_LOADED,), milliseconds, 1.0),
    *torch_save_promises("torch zip", TORCH_SAVED),
    *torch_save_promises("torch legacy", LEGACY_SAVED),
    at_least("cold torch load: speed over torch.load", TORCH_LOADED, "torch-cold: torch.load", 2.0),
    at_least("cold torch load: speed over fio", TORCH_LOADED, "torch-cold: fio direct read", 1.1),
    at_least("cold torch legacy load: speed over torch.load", LEGACY_LOADED, "torch-cold: torch.load legacy", 2.0),
    at_least("cold torch legacy load: speed over fio", LEGACY_LOADED, "torch-cold: fio direct read", 1.1),
    at_least("warm torch load: speed over torch.load's mmap", TORCH_MAPPED, "torch-warm: torch.load, mmap", 1.0),
    at_least("20,000 tiny tensors: speed over torch.load", TORCH_MANY, "torch-many: torch.load", 4.0),
    at_most("save_async: caller blocked, over one memcpy", ("async: penstock.save_async", MEMCPY), time_over, 1.1),
    at_most("training that saves every time: time over none", ("train: penstock.save_async", STILL), time_over, 1.1),
    at_most("the same, with a snapshot", ("train: penstock.save_async, snapshot", STILL), time_over, 1.1),
)

ZIP_SAVERS = r"^torch\.save (\+|without)|zip"
# All of these load the same tensors cold, each in the format that its library reads.
COLD_RACES = ("cold", "assign", "torch-cold")


def cold_promises(what: str, ours: str, against: tuple[str, ...]) -> tuple[Promise, ...]:
    near_peers = f"{what}: processor time over that of peers within 2x"
    return (
        at_least(f"{what}: speed over fio", ours, FIO_READ, 1.2),
        over_best(f"{what}: speed over the best peer in any format", ours, 1.25, against),
        Promise(near_peers, (ours,), cpu_over_near_peers, 1.0, at_least=False, against=against),
    )


# To be reached in one and the same run, over everybody who takes part.
FIELD_PROMISES = (
    *cold_promises("cold load, fresh memory", COLD, COLD_RACES),
    *cold_promises("cold load, reused memory", REUSED, ("cold-reused", *COLD_RACES)),
    over_best("warm load: speed over the first", WARM, 0.95),
    over_best("half-resident load: speed over the best peer", "half: penstock.load", 1.2),
    at_least("safetensors save: speed over fio", SAVED, "save: fio direct write", 1.2),
    over_best("safetensors save: speed over the best peer", SAVED, 2.0),
    over_best("safetensors save: speed over torch DCP", SAVED, 2.5, named="DCP"),
    at_least("FlashPack save: speed over fio", PACKED, "pack: fio direct write", 1.2),
    over_best("FlashPack save: speed over the best peer", PACKED, 2.0),
    at_most("FlashPack save: processor seconds per GiB", (PACKED,), cpu_per_gib, 0.3),
    at_least("torch legacy save: speed over fio", LEGACY_SAVED, TORCH_FIO, 1.2),
    over_best("torch legacy save: speed over FastPersist's legacy", LEGACY_SAVED, 1.3, named="FastPersist legacy"),
    at_least("torch zip save: speed over fio", TORCH_SAVED, TORCH_FIO, 1.2),
    over_best("torch zip save: speed over the best other zip", TORCH_SAVED, 3.0, named=ZIP_SAVERS),
    over_best("mixture of experts, cold: speed over the best peer", "moe-cold: penstock.load", 2.0),
    over_best("mixture of experts, warm: speed over the best peer", "moe-warm: penstock.load", 2.0),
    over_best("20,000 tiny tensors, cold: speed over the best peer", "20k-cold: penstock.load", 2.0),
    over_best("20,000 tiny tensors, warm: speed over the best peer", "20k-warm: penstock.load", 2.0),
    at_most("a model of 1 MiB, ms", ("1mib-warm: penstock.load",), milliseconds, 1.0),
    over_best("a model of 1 MiB: speed over the best peer", "1mib-warm: penstock.load", 1.0),
    at_most("cold load: C++ and Python apart, percent", (COLD, "cold: penstock C++"), difference, 5),
    at_most("warm load: C++ and Python apart, percent", (WARM, "warm: penstock C++"), difference, 5),
    at_most("save: C++ and Python apart, percent", (SAVED, "save: penstock C++"), difference, 5),
)


# What moves the bytes of each race and does nothing else. Every cold race reads files of the same size.
ENGINE_ALONE = {
    **dict.fromkeys(("cold-reused", *COLD_RACES), "cold: the engine alone, read"),
    **{race: f"{race}: the engine alone, write" for race in ("save", "pack", "torch-save")},
}


@dataclass(frozen=True)
class Verdict:
    """`engine_alone` is the figure of the engine without tensors to fill or to take from: about the most there is."""

    promise: Promise
    figure: float
    holds: bool
    engine_alone: float | None = None


def judge(summaries: list[Summary]) -> list[Verdict]:
    """Every promise whose cases were measured."""
    by_key = {summary.case.key: summary for summary in summaries}
    verdicts = []
    for promise in (*FIELD_PROMISES, *PROMISES):
        peers = promise.peers(summaries)
        if all(key in by_key for key in promise.cases) and bool(peers) == bool(promise.against):
            ours, *others = *(by_key[key] for key in promise.cases), *peers
            engine = by_key.get(ENGINE_ALONE.get(ours.case.race.key, ""))
            compares = engine is not None and promise.measure in (speed, speed_over_best)
            figure = promise.measure(ours, *others)
            alone = promise.measure(engine, *others) if compares else None
            verdicts.append(Verdict(promise, figure, promise.holds(figure), alone))
    return verdicts
