"""What a proof has counted: a table in records/NAME.json, from which docs/reliability.md has its tables.

write(Record("crash-kills", "Kills", ["save", "kills", "lost"], [["one file", 812, 0]], seconds=73.0))
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "proof" / "records"
PAGE = ROOT / "docs" / "reliability.md"

Cell = str | int | float | None


def commit_now() -> str:
    """The commit that is checked out, marked where files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=7", "--exclude=*", "--dirty=+"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def today() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


@dataclass
class Record:
    name: str  # of the file, and of the place in the page
    title: str
    columns: list[str]
    rows: list[list[Cell]]
    seconds: float
    date: str = field(default_factory=today)
    commit: str = field(default_factory=commit_now)


def cell_text(cell: Cell) -> str:
    if isinstance(cell, int):
        return f"{cell:,}"
    return "" if cell is None else str(cell)


def length_text(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"


def as_markdown(record: Record) -> str:
    """A table, the numbers to the right, and when and where from."""
    numeric = [all(isinstance(row[i], (int, float)) for row in record.rows) for i in range(len(record.columns))]
    rules = ["---:" if right else "---" for right in numeric]
    lines = [record.columns, rules, *([cell_text(cell) for cell in row] for row in record.rows)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{table}\n\n{record.title}: {record.date}, commit {record.commit}, {length_text(record.seconds)}."


def read(name: str) -> Record:
    return Record(**json.loads((RECORDS / f"{name}.json").read_text()))


def names() -> list[str]:
    return sorted(path.stem for path in RECORDS.glob("*.json"))


def place(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- record {re.escape(name)} -->\n).*?(<!-- end of {re.escape(name)} -->)", re.DOTALL)


def with_record(page: str, record: Record) -> str:
    """The page with this record's table between its marks."""
    text, count = place(record.name).subn(lambda marks: f"{marks[1]}\n{as_markdown(record)}\n\n{marks[2]}", page)
    if count != 1:
        raise SystemExit(f"{PAGE.relative_to(ROOT)}: has {count} places for the record {record.name}, not one")
    return text


def write(record: Record) -> None:
    """Keeps the record and writes its table into the page."""
    page = with_record(PAGE.read_text(), record)
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{record.name}.json").write_text(json.dumps(asdict(record), indent=1) + "\n")
    PAGE.write_text(page)
