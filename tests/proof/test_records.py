"""The tables of docs/reliability.md are those of the records, every one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proof"))

import record  # noqa: E402


def test_every_table_of_the_page_is_its_records() -> None:
    page = record.PAGE.read_text()
    for name in record.names():
        assert record.with_record(page, record.read(name)) == page, name


def test_every_place_of_the_page_has_a_record() -> None:
    assert sorted(re.findall(r"<!-- record (\S+) -->", record.PAGE.read_text())) == record.names()


def test_a_record_is_a_table_with_numbers_to_the_right() -> None:
    given = record.Record("x", "Kills", ["save", "kills"], [["one file", 12345]], 61.0, "2026-01-02", "abcdef0")
    assert record.as_markdown(given) == (
        "| save | kills |\n| --- | ---: |\n| one file | 12,345 |\n\nKills: 2026-01-02, commit abcdef0, 61 s."
    )
