"""The short form of proof/power.py, and that the cuts it makes would find what gets lost."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proof"))

from power import CONTROLS, IN_SHORT, SKIPPED  # noqa: E402
from power_cuts import Outcome  # noqa: E402
from power_fuse import MARKED, SYNCED, WRITTEN, Entry  # noqa: E402
from power_log import BLOCK, Cut, WriteLog, some_of  # noqa: E402

LINE = re.compile(r"(\w+) +(.*?) +(\d+) cuts: +(\d+) old +(\d+) new +(\d+) lost, +(\d+) not there")


def test_nothing_that_was_saved_is_lost_in_a_power_cut_and_what_was_not_synced_is() -> None:
    done = subprocess.run([sys.executable, ROOT / "proof/power.py", "--short"], capture_output=True, text=True)
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    found = [LINE.match(line) for line in done.stdout.splitlines()]
    counts = {(row[1], row[2]): [int(row[i]) for i in range(3, 8)] for row in found if row}
    filesystems = {name for name, _ in counts}
    assert counts.keys() == {(name, subject) for name in filesystems for subject in (*IN_SHORT, *CONTROLS)}
    assert all(cuts == old + new + lost > 0 for cuts, old, new, lost, _ in counts.values())
    gone = {key: lost + late for key, (_, _, _, lost, late) in counts.items()}
    for name in filesystems:
        assert [gone[name, subject] for subject in IN_SHORT] == [0] * len(IN_SHORT)
        assert sum(gone[name, subject] for subject in CONTROLS) > 0


@pytest.mark.parametrize(
    ("subject", "returned", "found", "lost", "broken"),
    [
        ("safetensors over a file", False, "old", False, False),
        ("safetensors over a file", False, "new", False, False),
        ("safetensors over a file", True, "new", False, False),
        ("safetensors over a file", True, "old", False, True),
        ("safetensors over a file", False, "nothing", True, True),
        ("safetensors over a file", False, "neither: torn", True, True),
        ("safetensors over nothing", False, "nothing", False, False),
        ("safetensors over nothing", True, "nothing", False, True),
        ("safetensors over nothing", False, "neither: torn", True, True),
    ],
)
def test_old_or_new_while_saving_and_new_afterwards(
    subject: str, returned: bool, found: str, lost: bool, broken: bool
) -> None:
    outcome = Outcome(subject, "ext4", "replay", returned, found, None, "")
    assert (outcome.lost, bool(outcome.broken)) == (lost, broken)


def test_a_next_save_that_fails_breaks_the_promise_too() -> None:
    assert Outcome("safetensors over a file", "ext4", "replay", False, "old", "it fails", "").broken == "it fails"


def block(letter: str) -> bytes:
    return letter.encode() * BLOCK


ENTRIES = [
    Entry(WRITTEN, 0, block("a")),
    Entry(SYNCED, 0, b""),
    Entry(MARKED, 0, b"saving"),
    Entry(WRITTEN, BLOCK, block("b") + block("c")),
    Entry(WRITTEN, 0, block("d")),
    Entry(SYNCED, 0, b""),
    Entry(MARKED, 0, b"returned"),
]


def images(tmp_path: Path, cuts: list[Cut]) -> list[str]:
    """Their blocks, a letter each."""
    (tmp_path / "image").write_bytes(block(".") * 3)
    log = WriteLog(tmp_path / "image", ENTRIES)
    target = tmp_path / "target"
    return [target.read_bytes()[::BLOCK].decode() for _ in log.images(cuts, target, random.Random(1))]


def test_a_drive_that_keeps_order_has_all_that_it_was_told(tmp_path: Path) -> None:
    cuts = [Cut(at, True) for at in range(len(ENTRIES) + 1)]
    assert images(tmp_path, cuts) == ["...", "a..", "a..", "a..", "abc", "dbc", "dbc", "dbc"]


def test_a_drive_with_a_cache_has_what_was_synced_and_any_blocks_of_the_rest(tmp_path: Path) -> None:
    assert set(images(tmp_path, [Cut(5, False)] * 300)) == {a + b + c for a in "ad" for b in ".b" for c in ".c"}
    assert set(images(tmp_path, [Cut(6, False)] * 20)) == {"dbc"}


def test_blocks_are_kept_whole_and_in_their_places() -> None:
    choose = random.Random(2)
    for entry in (entry for _ in range(100) for entry in some_of(ENTRIES, choose)):
        assert entry.data in {0: (block("a"), block("d")), BLOCK: (block("b"),), 2 * BLOCK: (block("c"),)}[entry.offset]


def test_moments_are_those_after_each_write_and_sync(tmp_path: Path) -> None:
    log = WriteLog(tmp_path, ENTRIES)
    assert (log.marks, log.moments(2, 6)) == ({"saving": 2, "returned": 6}, [4, 5, 6])
