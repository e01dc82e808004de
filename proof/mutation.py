"""Breaks the code, an operator or statement at a time, and counts what the C++ tests notice.

    python proof/mutation.py --sample 400 --record

The sources are copied to build/mutation/tree, and all mutants of the sample are compiled into the copies at once
(mutants.py). A first run notes which test asks for which mutant; then each mutant is on while the tests that reach it
run, the quick ones first, until one fails. What no test notices is a survivor: exit code 1, unless it is one that
mutants_explained.txt says why of.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mutants
import record
from mutants import Mutant

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "mutation"
TREE = WORK / "tree"
BUILD = WORK / "build"
EXPLAINED = Path(__file__).with_name("mutants_explained.txt")
COPIED = ("CMakeLists.txt", "cmake", "include", "src", "tests/sim", "tests/cuda", "tests/data")
PROGRAMS = ("format", "io", "transfer", "api")
# What is mutated, and its part of the sample.
PLACES = {"src/format": 0.45, "src/io": 0.2, "src/api/save": 0.35}
FLAGS = ["-std=c++20", "-w", f"-I{TREE}/include", f"-I{TREE}/src", "-include", f"{TREE}/src/mutant.h"]
# Suites in which nothing that is mutated is at stake, and which take long.
LEFT_OUT = ("DoctorTest", "DeviceLoadTest", "GdsLoadTest")
BATCHES = (10, 100)  # tests in the first runs of a mutant, the quick ones
MEMORY = 64 << 30  # of addresses: a mutant may ask for all there are
FILE_SIZE = 4 << 30

SWITCH = """#include "mutant.h"

#include <cstdlib>
#include <sys/mman.h>

namespace mutants {

static unsigned char own[100000];
unsigned char* seen = own;
// Shared, so that what a child of fork() reaches is seen too.
static const bool ready = [] {
  void* shared = ::mmap(nullptr, sizeof(own), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared != MAP_FAILED) seen = static_cast<unsigned char*>(shared);
  return true;
}();
int on = std::getenv("MUTANT") ? std::atoi(std::getenv("MUTANT")) : 0;

}  // namespace mutants
"""

LISTENER = """#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// Writes a line for each test: its name, its milliseconds and the mutants that it asks for.
class Trace final : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& test) override {
    std::FILE* file = std::fopen(std::getenv("MUTANT_TRACE"), "a");
    std::fprintf(file, "%s.%s\\t%d\\t", test.test_suite_name(), test.name(),
                 static_cast<int>(test.result()->elapsed_time()));
    for (int i = 0; i < 100000; ++i) {
      if (mutants::seen[i]) std::fprintf(file, "%d ", i);
    }
    std::fprintf(file, "\\t%s\\n", test.result()->Failed() ? "failed" : "passed");
    std::fclose(file);
    std::memset(mutants::seen, 0, 100000);
  }
};

const bool listens = [] {
  if (std::getenv("MUTANT_TRACE")) testing::UnitTest::GetInstance()->listeners().Append(new Trace);
  return true;
}();

}  // namespace
"""


def say(text: str) -> None:
    print(f"[mutation] {text}", flush=True)


def sources_of(place: str) -> list[Path]:
    return sorted(path for path in (ROOT / place).glob("*.cc") if not path.stem.endswith("_test"))


def put(path: Path, data: bytes) -> None:
    """Leaves a file that is the same alone: its objects are still good."""
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def copy_tree() -> None:
    """All but the files that mutants go into."""
    mutated = {path for place in PLACES for path in sources_of(place)}
    wanted = [path for name in COPIED for path in [ROOT / name, *(ROOT / name).rglob("*")] if path.is_file()]
    for path in wanted:
        if path not in mutated:
            put(TREE / path.relative_to(ROOT), path.read_bytes())
    put(TREE / "src" / "mutant.h", (ROOT / "proof" / "mutant.h").read_bytes())
    put(TREE / "src" / "base" / "mutant_switch.cc", SWITCH.encode())
    for layer in PROGRAMS:
        put(TREE / "src" / layer / "mutant_listener_test.cc", LISTENER.encode())


def choose(place: str, count: int, seed: int) -> list[Mutant]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [m for some in pool.map(lambda path: mutants.find(path, ROOT), sources_of(place)) for m in some]
    # A hash decides, so that a change of one file leaves the sample of the others as it is. More are tried than are
    # wanted: not every mutant is C++.
    found.sort(key=lambda m: hashlib.sha256(f"{seed} {m.file} {m.source} {m.change}".encode()).digest())
    chosen = found[: count + count // 3 + 10]
    say(f"{place}: {len(found)} possible, {len(chosen)} tried")
    return chosen


def write_file(name: str, group: list[Mutant]) -> None:
    put(TREE / name, mutants.write((ROOT / name).read_bytes(), group))


def drop_what_is_no_cpp(name: str, group: list[Mutant]) -> list[Mutant]:
    """Mutants that compile: constant expressions can't ask which mutant is on."""
    while group:
        write_file(name, group)
        command = ["g++", *FLAGS, "-fmax-errors=0", "-fsyntax-only", str(TREE / name)]
        result = subprocess.run(command, check=False, capture_output=True, text=True)
        if result.returncode == 0:
            return group
        lines = {int(line) for line in re.findall(rf"{re.escape(name)}:(\d+):", result.stderr)}
        left = [m for m in group if not lines & set(range(m.line, m.last_line + 1))]
        if len(left) == len(group):
            raise SystemExit(f"[mutation] {name} does not compile:\n{result.stderr[-2000:]}")
        group = left
    write_file(name, group)
    return group


def prepare(total: int, seed: int) -> list[Mutant]:
    """The sample, compiled into the tree."""
    copy_tree()
    wanted = {place: round(total * part) for place, part in PLACES.items()}
    tried = {place: choose(place, count, seed) for place, count in wanted.items()}
    everything = [m for some in tried.values() for m in some]
    for i, mutant in enumerate(everything, start=1):
        mutant.number = i
    by_file: dict[str, list[Mutant]] = {
        str(path.relative_to(ROOT)): [] for place in PLACES for path in sources_of(place)
    }
    for mutant in everything:
        by_file[mutant.file].append(mutant)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = list(pool.map(lambda item: drop_what_is_no_cpp(*item), by_file.items()))
    numbers = {m.number for group in compiled for m in group}
    sample = [m for place, some in tried.items() for m in [m for m in some if m.number in numbers][: wanted[place]]]
    numbers = {m.number for m in sample}
    for name, group in by_file.items():
        write_file(name, [m for m in group if m.number in numbers])
    return sample


def build() -> None:
    log = ROOT / "build" / "logs" / "build-mutation.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    flags = f"-O0 -w -include {TREE}/src/mutant.h"
    options = ["-DPENSTOCK_BUILD_CLI=OFF", "-DPENSTOCK_BUILD_EXAMPLES=OFF", "-DPENSTOCK_UNITY_BUILD=ON"]
    configure = ["cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", *options]
    targets = [f"penstock_{program}_test" for program in PROGRAMS]
    with log.open("w") as output:
        for command in (
            [*configure, f"-DCMAKE_CXX_FLAGS_DEBUG={flags}"],
            ["cmake", "--build", BUILD, "-j", str(os.cpu_count()), "--target", *targets],
        ):
            result = subprocess.run(command, check=False, stdout=output, stderr=subprocess.STDOUT)
            if result.returncode != 0:
                raise SystemExit(f"[mutation] the build failed: {log.relative_to(ROOT)}")


def limit_process() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_tests(program: str, names: Iterable[str], seconds: float, **variables: str) -> str:
    """Nothing where all passed; else what failed."""
    chosen = list(names)
    flags = WORK / f"filter-{program}-{variables.get('MUTANT', chosen[0].replace('/', '_'))}"
    flags.write_text(f"--gtest_filter={':'.join(chosen)}\n")
    command = [str(BUILD / "src" / "testing" / f"penstock_{program}_test"), f"--gtest_flagfile={flags}"]
    command += ["--gtest_fail_fast"] if "MUTANT" in variables else []
    temporary = WORK / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, **variables, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command,
        env=environment,
        cwd=BUILD,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=limit_process,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return "no end"
        finally:
            flags.unlink()
    if process.returncode == 0:
        return ""
    failed = re.search(r"\[  FAILED  \] (\S+)", output) or re.search(r"\[ RUN      \] (\S+)(?!.*RUN)", output, re.S)
    return (failed[1] if failed else "a crash").rstrip(",")


def suites_of(program: str) -> list[str]:
    command = [BUILD / "src" / "testing" / f"penstock_{program}_test", "--gtest_list_tests"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    suites = [line.split("#")[0].strip() for line in listed.splitlines() if line and not line.startswith(" ")]
    return [suite for suite in suites if suite.endswith(".") and suite[:-1] not in LEFT_OUT]


class Tests:
    """Which test reaches which mutant, and how long it takes."""

    def __init__(self, jobs: int) -> None:
        self.reaching: dict[int, dict[str, list[tuple[int, str]]]] = defaultdict(lambda: defaultdict(list))
        # Each suite in a process of its own, as ctest has it.
        work = [(program, suite) for program in PROGRAMS for suite in suites_of(program)]
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda item: self.trace(*item), work))

    def trace(self, program: str, suite: str) -> None:
        path = WORK / f"trace-{program}-{suite.replace('/', '_')}"
        path.unlink(missing_ok=True)
        run_tests(program, [f"{suite}*"], 1800, MUTANT_TRACE=str(path))
        if path.exists():
            self.read(program, path)

    def read(self, program: str, trace: Path) -> None:
        count = 0
        for line in trace.read_text().splitlines():
            name, milliseconds, numbers, state = line.split("\t")
            if state == "failed":
                say(f"{program}: {name} fails without any mutant and is left out")
                continue
            count += 1
            for number in numbers.split():
                self.reaching[int(number)][program].append((int(milliseconds), name))
        say(f"{trace.name}: {count} tests")

    def judge(self, mutant: Mutant) -> None:
        for program in PROGRAMS:
            tests = sorted(self.reaching[mutant.number][program])
            mutant.reached = mutant.reached or bool(tests)
            for begin, end in zip((0, *BATCHES), (*BATCHES, None), strict=True):
                batch = tests[begin:end]
                if not batch:
                    break
                seconds = 60 + 20 * sum(milliseconds for milliseconds, _ in batch) / 1000
                mutant.killed_by = run_tests(program, [n for _, n in batch], seconds, MUTANT=str(mutant.number))
                if mutant.killed_by:
                    return


def read_explained() -> dict[tuple[str, str, str], str]:
    """(file, line, change) -> why no test can tell."""
    explained = {}
    for block in EXPLAINED.read_text().split("\n\n") if EXPLAINED.exists() else []:
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        if not lines:
            continue
        name, source, change, *reason = lines
        explained[name, source.strip(), change.strip()] = " ".join(line.strip() for line in reason)
    return explained


def show(mutant: Mutant) -> None:
    reached = "" if mutant.reached else " (no test comes here)"
    say(f"SURVIVED {mutant.file}:{mutant.line}{reached}\n{mutant.file}\n  {mutant.source}\n  {mutant.change}")


def judge_all(sample: list[Mutant], jobs: int) -> None:
    tests = Tests(jobs)
    explained = read_explained()
    begin = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        for i, mutant in enumerate(pool.map(lambda m: (tests.judge(m), m)[1], sample), start=1):
            if not mutant.killed_by:
                mutant.explained = explained.get((mutant.file, mutant.source, mutant.change), "")
                if not mutant.explained:
                    show(mutant)
            if i % 25 == 0:
                say(f"{i} of {len(sample)} mutants in {time.monotonic() - begin:.0f} s")


def rows_of(sample: list[Mutant]) -> list[list[record.Cell]]:
    rows: list[list[record.Cell]] = []
    for place in PLACES:
        group = [m for m in sample if m.file.startswith(place)]
        killed = sum(bool(m.killed_by) for m in group)
        explained = sum(bool(m.explained) for m in group)
        judged = len(group) - explained
        score = f"{100 * killed / judged:.1f}%" if judged else ""
        rows.append([f"`{place}`", len(group), killed, explained, judged - killed, score])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=300, help="mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at a time (default: %(default)s)")
    parser.add_argument("--only", default="", help="only mutants of files that this is a part of the name of")
    parser.add_argument("--record", action="store_true", help="write the table of docs/reliability.md")
    arguments = parser.parse_args()
    begin = time.monotonic()
    WORK.mkdir(parents=True, exist_ok=True)
    sample = prepare(arguments.sample, arguments.seed)
    say(f"{len(sample)} mutants; building")
    build()
    sample = [m for m in sample if arguments.only in m.file]
    judge_all(sample, arguments.jobs)
    rows = rows_of(sample)
    columns = ["folder", "mutants", "noticed", "explained", "survived", "score"]
    result = record.Record("mutation", "Mutants", columns, rows, time.monotonic() - begin)
    print(record.as_markdown(result))
    if arguments.record:
        record.write(result)
    return 1 if any(row[4] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
