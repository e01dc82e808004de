"""Builds the fuzz targets and runs each for a while, starting from its seed corpus.

Every fuzz/fuzz_NAME.cc is a target; its seeds are in fuzz/corpus/fuzz_NAME/, its words (if any) in fuzz/NAME.dict. What
a run discovers is kept in build/fuzz/corpus/, so that the next run goes on from there; --keep minimises that into
fuzz/found/fuzz_NAME.zip, which later runs start from. An input that breaks something is written to
build/fuzz/artifacts/ and makes this fail. Every run is noted in build/fuzz/runs.jsonl; --record adds these notes to the
table of docs/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "proof"))

import record  # noqa: E402

BUILD = ROOT / "build" / "fuzz"
RUNS = BUILD / "runs.jsonl"
FOUND = ROOT / "fuzz" / "found"
COLUMNS = ["target", "inputs, sanitizers on", "inputs, sanitizers off", "hours", "commits"]
COUNT = r"stat::number_of_executed_units:\s*(\d+)"
LARGEST_KEPT = 4096  # bytes of an input that is committed
MOST_KEPT = 200_000  # bytes of all inputs of a target


@dataclass
class Plan:
    seconds: int
    fast: bool  # without sanitizers
    max_len: int

    @property
    def preset(self) -> str:
        return "fuzz-fast" if self.fast else "fuzz"


def target_names() -> list[str]:
    return sorted(path.stem for path in (ROOT / "fuzz").glob("fuzz_*.cc"))


def folder_of(kind: str, name: str) -> Path:
    folder = BUILD / kind / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def corpus_of(name: str) -> Path:
    """What was found before; to begin with, what is committed of it."""
    corpus = folder_of("corpus", name)
    kept = FOUND / f"{name}.zip"
    if kept.exists() and not any(corpus.iterdir()):
        with zipfile.ZipFile(kept) as archive:
            archive.extractall(corpus)
    return corpus


def run_target(name: str, plan: Plan) -> bool:
    seeds = ROOT / "fuzz" / "corpus" / name
    if not any(seeds.glob("*")):
        raise SystemExit(f"[fuzz] FAILED: {name} has no seeds in {seeds.relative_to(ROOT)}")
    command = [
        str(ROOT / "build" / plan.preset / "fuzz" / name),
        f"-max_total_time={plan.seconds}",
        f"-artifact_prefix={folder_of('artifacts', name)}/",
        "-timeout=25",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        *([f"-max_len={plan.max_len}"] if plan.max_len else []),
        *(["-entropic=0"] if plan.fast else []),  # its statistics take a quarter of the time
        str(corpus_of(name)),
        str(seeds),
    ]
    words = ROOT / "fuzz" / f"{name.removeprefix('fuzz_')}.dict"
    if words.exists():
        command.append(f"-dict={words}")
    log = ROOT / "build" / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    begin, commit = time.monotonic(), record.commit_now()
    with log.open("w") as output:
        status = subprocess.run(command, check=False, stdout=output, stderr=subprocess.STDOUT).returncode
    runs = re.search(COUNT, log.read_text(errors="replace"))
    if runs:
        note_run(name, plan.fast, int(runs[1]), time.monotonic() - begin, commit)
    return report(name, status, int(runs[1]) if runs else 0, plan.seconds, log)


def report(name: str, status: int, count: int, seconds: int, log: Path) -> bool:
    if status == 0 and count:
        print(f"[fuzz] {name}: {count:,} inputs in {seconds} s, no finding", flush=True)
        return True
    print("\n".join(log.read_text(errors="replace").splitlines()[-40:]))
    print(f"[fuzz] FAILED: {name} (exit code {status}); the whole output is in {log.relative_to(ROOT)}", flush=True)
    return False


def note_run(name: str, fast: bool, count: int, seconds: float, commit: str) -> None:
    with RUNS.open("a") as notes:
        note = {"target": name, "fast": fast, "inputs": count, "seconds": seconds, "commit": commit}
        notes.write(json.dumps(note) + "\n")


def add_to_record() -> None:
    """The notes, on top of what was recorded before."""
    old = record.read("fuzz") if "fuzz" in record.names() else record.Record("fuzz", "Fuzzing", COLUMNS, [], 0.0)
    rows = {str(row[0]): row for row in old.rows}
    seconds = old.seconds
    for line in RUNS.read_text().splitlines() if RUNS.exists() else []:
        note = json.loads(line)
        row = rows.setdefault(note["target"], [note["target"], 0, 0, 0.0, ""])
        row[2 if note["fast"] else 1] += note["inputs"]
        row[3] = round(float(row[3] or 0) + note["seconds"] / 3600, 3)
        commits = str(row[4]).split()
        row[4] = " ".join(commits if note["commit"] in commits else [*commits, note["commit"]])
        seconds += note["seconds"]
    record.write(record.Record("fuzz", "Fuzzing", COLUMNS, [rows[name] for name in sorted(rows)], seconds))
    RUNS.unlink(missing_ok=True)


def keep_found(name: str) -> None:
    """The smallest inputs that reach all that was reached, up to a size. The same inputs give the same archive."""
    minimal = folder_of("minimal", name)
    for old in minimal.iterdir():
        old.unlink()
    program = ROOT / "build" / "fuzz-fast" / "fuzz" / name
    command = [
        program,
        "-merge=1",
        f"-max_len={LARGEST_KEPT}",
        minimal,
        corpus_of(name),
        ROOT / "fuzz" / "corpus" / name,
    ]
    subprocess.run(command, check=True, capture_output=True)
    FOUND.mkdir(exist_ok=True)
    total = 0
    with zipfile.ZipFile(FOUND / f"{name}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(minimal.iterdir(), key=lambda path: (path.stat().st_size, path.name)):
            total += path.stat().st_size
            if total > MOST_KEPT:
                break
            archive.writestr(zipfile.ZipInfo(path.name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    print(f"[fuzz] {name}: {len(archive.namelist())} inputs kept in fuzz/found/{name}.zip", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600, help="for each target (default: %(default)s)")
    parser.add_argument("--fast", action="store_true", help="without sanitizers, for several times as many inputs")
    parser.add_argument("--max-len", type=int, default=0, help="bytes of the largest input (default: as the seeds)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time (default: all CPUs)")
    parser.add_argument("--keep", action="store_true", help="minimise what was found into fuzz/found")
    parser.add_argument("--record", action="store_true", help="add the runs to the table of docs/reliability.md")
    parser.add_argument("targets", nargs="*", help="only these (default: all)")
    arguments = parser.parse_args()
    names = arguments.targets or target_names()
    if not names:
        raise SystemExit("[fuzz] FAILED: there are no fuzz targets")
    plan = Plan(arguments.seconds, arguments.fast, arguments.max_len)
    failed = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        if plan.seconds > 0:
            subprocess.run([ROOT / "scripts" / "build_native.sh", plan.preset, *names], check=True)
            results = list(pool.map(lambda name: run_target(name, plan), names))
            failed = [name for name, passed in zip(names, results, strict=True) if not passed]
        if arguments.keep:
            subprocess.run([ROOT / "scripts" / "build_native.sh", "fuzz-fast", *names], check=True)
            list(pool.map(keep_found, names))
    if arguments.record:
        add_to_record()
    if failed:
        print(f"[fuzz] FAILED: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
