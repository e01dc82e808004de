"""Builds the fuzz targets and runs each for a while, starting from its seed corpus.

Every fuzz/fuzz_NAME.cc is a target; its seeds are in fuzz/corpus/fuzz_NAME/, its words (if any) in fuzz/NAME.dict. What
a run discovers is kept in build/fuzz/corpus/, so that the next run goes on from there; an input that breaks something
is written to build/fuzz/artifacts/ and makes this fail.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "fuzz"


def target_names() -> list[str]:
    return sorted(path.stem for path in (ROOT / "fuzz").glob("fuzz_*.cc"))


def run_target(name: str, seconds: int) -> bool:
    seeds = ROOT / "fuzz" / "corpus" / name
    if not any(seeds.glob("*")):
        raise SystemExit(f"[fuzz] FAILED: {name} has no seeds in {seeds.relative_to(ROOT)}")
    corpus = BUILD / "corpus" / name
    artifacts = BUILD / "artifacts" / name
    corpus.mkdir(parents=True, exist_ok=True)
    artifacts.mkdir(parents=True, exist_ok=True)
    command = [
        str(BUILD / "fuzz" / name),
        f"-max_total_time={seconds}",
        f"-artifact_prefix={artifacts}/",
        "-timeout=10",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        str(corpus),
        str(seeds),
    ]
    words = ROOT / "fuzz" / f"{name.removeprefix('fuzz_')}.dict"
    if words.exists():
        command.append(f"-dict={words}")
    log = ROOT / "build" / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        status = subprocess.run(command, check=False, stdout=output, stderr=subprocess.STDOUT).returncode
    return report(name, status, seconds, log)


def report(name: str, status: int, seconds: int, log: Path) -> bool:
    text = log.read_text(errors="replace")
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    if status == 0 and runs:
        print(f"[fuzz] {name}: {int(runs[1]):,} inputs in {seconds} s, no finding", flush=True)
        return True
    print("\n".join(text.splitlines()[-40:]))
    print(f"[fuzz] FAILED: {name} (exit code {status}); the whole output is in {log.relative_to(ROOT)}", flush=True)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600, help="for each target (default: %(default)s)")
    parser.add_argument("targets", nargs="*", help="only these (default: all)")
    arguments = parser.parse_args()
    names = arguments.targets or target_names()
    if not names:
        raise SystemExit("[fuzz] FAILED: there are no fuzz targets")
    subprocess.run([ROOT / "scripts" / "build_native.sh", "fuzz", *names], check=True)
    # A target runs on one processor.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = list(pool.map(lambda name: run_target(name, arguments.seconds), names))
    failed = [name for name, passed in zip(names, results, strict=True) if not passed]
    if failed:
        print(f"[fuzz] FAILED: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
