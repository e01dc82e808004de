"""The speeds that penstock promises, as ratios of figures measured side by side. The race says which of them hold."""

from __future__ import annotations

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

    def holds(self, figure: float) -> bool:
        return figure >= self.limit if self.at_least else figure <= self.limit


def speed(ours: Summary, other: Summary) -> float:
    return ours.speed_over(other)


def speed_over_best(ours: Summary, *others: Summary) -> float:
    return min(ours.speed_over(other) for other in others)


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


COLD, REUSED = "cold: penstock.load", "cold: penstock.load, reused memory"
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
FASTPERSIST = (
    "torch-save: FastPersist legacy",
    "torch-save: FastPersist legacy, whole storages",
    "torch-save: FastPersist legacy, whole storages, 256 MB",
)
MEMCPY, STILL = "async: memcpy, one core", "train: no checkpoint"
TINY_SAVED, TINY_LOADED = "tiny-save: penstock pack_to_file", "tiny-load: penstock assign_from_file"


def torch_save_promises(what: str, saved: str) -> tuple[Promise, ...]:
    return (
        Promise(f"{what} save: speed over torch.save + fsync", (saved, "torch-save: torch.save + fsync"), speed, 4.0),
        Promise(f"{what} save: speed over FastPersist's best legacy", (saved, *FASTPERSIST), speed_over_best, 1.4),
        Promise(f"{what} save: speed over fio", (saved, TORCH_FIO), speed, 1.1),
        Promise(f"{what} save: processor seconds per GiB", (saved,), cpu_per_gib, 0.3, at_least=False),
        Promise(f"{what} save: memory beyond the payload, MiB", (saved,), memory_while_saving, 64, at_least=False),
    )


PROMISES = (
    Promise("cold load: speed over fio", (COLD, FIO_READ), speed, 1.1),
    Promise("cold load: speed over fastsafetensors", (COLD, FAST), speed, 1.2),
    Promise("cold load: processor time over fastsafetensors", (COLD, FAST), cpu, 1.0, at_least=False),
    Promise("cold load: speed over safetensors", (COLD, "cold: safetensors load_file"), speed, 2.0),
    Promise("cold load: memory above the payload, MiB", (COLD,), memory_above_payload, 64, at_least=False),
    Promise("cold load: page cache left behind, MiB", (COLD,), cache_left, 1, at_least=False),
    Promise("cold load, reused memory: speed over fio", (REUSED, FIO_READ), speed, 1.1),
    Promise(
        "cold load, reused memory: processor time over fastsafetensors", (REUSED, FAST), cpu, 1 / 3, at_least=False
    ),
    Promise("warm load: speed over safetensors' mmap", (WARM, "warm: safetensors load_file"), speed, 0.9),
    Promise("warm load, copied: speed over fastsafetensors", (COPIED, "warm: fastsafetensors"), speed, 1.5),
    Promise("warm load, copied: the same, buffered", (COPIED, "warm: fastsafetensors, buffered"), speed, 1.5),
    Promise("save: speed over fio", (SAVED, "save: fio direct write"), speed, 1.1),
    Promise("save: speed over safetensors + fsync", (SAVED, "save: safetensors save_file + fsync"), speed, 2.5),
    Promise("save: processor seconds per GiB", (SAVED,), cpu_per_gib, 0.3, at_least=False),
    Promise(
        "open 100,000 tensors: speed over safetensors",
        ("open: penstock.open", "open: safetensors safe_open"),
        speed,
        2.0,
    ),
    Promise("import penstock, ms", ("import: import penstock",), milliseconds, 50, at_least=False),
    Promise("pack: speed over flashpack + fsync", (PACKED, "pack: flashpack pack_to_file + fsync"), speed, 2.5),
    Promise("pack: memory beyond the payload, MiB", (PACKED,), memory_while_saving, 64, at_least=False),
    Promise("cold assign: speed over flashpack", (ASSIGNED, "assign: flashpack assign_from_file"), speed, 1.5),
    Promise("cold assign: the same, parallel reader", (ASSIGNED, "assign: flashpack, parallel reader"), speed, 1.2),
    Promise(
        "warm assign: speed over flashpack's mmap", (MAPPED, "assign-warm: flashpack assign_from_file"), speed, 1.0
    ),
    Promise(
        "save of three tensors: time over one small file's",
        (TINY_SAVED, "tiny-save: write, fsync, rename"),
        time_over,
        1.2,
        at_least=False,
    ),
    Promise("load of three tensors, ms", (TINY_LOADED,), milliseconds, 1.0, at_least=False),
    *torch_save_promises("torch zip", TORCH_SAVED),
    *torch_save_promises("torch legacy", LEGACY_SAVED),
    Promise("cold torch load: speed over torch.load", (TORCH_LOADED, "torch-cold: torch.load"), speed, 2.0),
    Promise("cold torch load: speed over fio", (TORCH_LOADED, "torch-cold: fio direct read"), speed, 1.1),
    Promise(
        "cold torch legacy load: speed over torch.load", (LEGACY_LOADED, "torch-cold: torch.load legacy"), speed, 2.0
    ),
    Promise("cold torch legacy load: speed over fio", (LEGACY_LOADED, "torch-cold: fio direct read"), speed, 1.1),
    Promise(
        "warm torch load: speed over torch.load's mmap",
        ("torch-warm: penstock.load", "torch-warm: torch.load, mmap"),
        speed,
        1.0,
    ),
    Promise(
        "20,000 tiny tensors: speed over torch.load",
        ("torch-many: penstock.load", "torch-many: torch.load"),
        speed,
        4.0,
    ),
    Promise(
        "save_async: caller blocked, over one memcpy",
        ("async: penstock.save_async", MEMCPY),
        time_over,
        1.1,
        at_least=False,
    ),
    Promise(
        "training that saves every time: time over none",
        ("train: penstock.save_async", STILL),
        time_over,
        1.1,
        at_least=False,
    ),
    Promise(
        "the same, with a snapshot", ("train: penstock.save_async, snapshot", STILL), time_over, 1.1, at_least=False
    ),
)


def judge(summaries: list[Summary]) -> list[tuple[Promise, float, bool]]:
    """Every promise whose cases were measured, with its figure and whether it holds."""
    by_key = {summary.case.key: summary for summary in summaries}
    verdicts = []
    for promise in PROMISES:
        if all(key in by_key for key in promise.cases):
            figure = promise.measure(*(by_key[key] for key in promise.cases))
            verdicts.append((promise, figure, promise.holds(figure)))
    return verdicts
