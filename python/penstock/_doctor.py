"""doctor: which way a load would take, and what would make it faster. remove_leftovers: what killed saves left."""

from __future__ import annotations

from typing import NamedTuple

from . import _core
from ._options import LoadTuning, Path, Stats, load_options, path_text
from ._paths import explaining
from ._types import DType, Unpack


class Advice(NamedTuple):
    """Something that would make loads faster, or possible. `topic` is for programs."""

    topic: str
    problem: str
    remedy: str


class Diagnosis(NamedTuple):
    """What `doctor` found.

    `now`, `cold` and `cold_reused` are what `load` would put into its `stats`, but for the time.
    """

    files: list[Stats]
    tensors: int
    bytes: int
    tensors_misaligned: int
    bytes_misaligned: int
    tensors_scattered: int
    open_seconds: float
    now: Stats
    cold: Stats | None
    cold_reused: Stats | None
    staging_bytes: int
    staging_registered: bool
    open_files_needed: int
    machine: Stats
    devices: Stats
    advice: list[Advice]

    def __repr__(self) -> str:
        way = f"{self.now['path']}, {self.now['landing']}, {self.now['backend']}: {self.now['reason']}"
        return f"<penstock.Diagnosis: {way}; {'; '.join(each.remedy for each in self.advice) or 'nothing to change'}>"


def doctor(path: Path, *, dtype: DType = None, cache: str = "auto", **tuning: Unpack[LoadTuning]) -> Diagnosis:
    """Tells which way `load` with the same arguments would take, into fresh memory, and loads nothing.

    The way is planned by the code that loads, from what the kernel says now: `now` with the page cache as it is, `cold`
    with nothing in it (None where files live there, as on tmpfs), `cold_reused` the same into memory that was used
    before. `files` has what is known of each file, `machine` what this process may use, `devices` those that its driver
    tells of (which is loaded for that), `advice` what would help.
    """
    text = path_text(path)
    with explaining([text]):
        found = _core.diagnose(text, load_options(dtype=dtype, cache=cache, **tuning))
    found["files"] = [Stats(file) for file in found["files"]]
    found["machine"] = Stats(found["machine"])
    found["devices"] = Stats(found["devices"])
    found["advice"] = [Advice(**each) for each in found["advice"]]
    for name in ("now", "cold", "cold_reused"):
        found[name] = None if found[name] is None else Stats(found[name])
    return Diagnosis(**found)


class Leftover(NamedTuple):
    """What a killed save had left. `restored`: a directory that was put aside has its name again; else it is gone."""

    path: str
    restored: bool


def remove_leftovers(directory: Path) -> list[Leftover]:
    """Removes what saves that were killed have left in a directory, and returns what is gone.

    They are known by the locks that a saver holds while it lives, never by their age: what a live saver is at work on
    stays, and so does all that no saver made. Any save into the directory removes most of it too; see
    docs/formats/sets.md. ``penstock doctor --clean DIRECTORY`` does the same. Not for a directory that other machines
    save into over a network on which locks are not shared.
    """
    text = path_text(directory)
    with explaining([text]):
        return [Leftover(str(path), restored) for path, restored in _core.remove_leftovers(text)]
