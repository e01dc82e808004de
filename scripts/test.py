"""Runs the stages of `make test`, all of them even when one fails, and adds up what the test runners reported.

Stages: release, arm64, asan, tsan, fuzz, python, proof, wild, vllm, deepspeed, docs, wheel, lint.
Without arguments every one runs, in this order.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv" / "bin"
REPORTS = ROOT / "build" / "reports"
LOGS = ROOT / "build" / "logs"
FUZZ_SECONDS = 5
SECONDS_BETWEEN_SIGNS = 10

# The layers with threads in them. The others are pure functions: ThreadSanitizer has nothing to say about them.
THREADED_LAYERS = ("base", "device", "io", "memory", "transfer", "api")

PYTHON_FOLDERS = ("python", "device", "cli", "repo", "cuda")
# One more than there are processors: many tests wait for a drive or for another process.
TEST_PROCESSES = (os.cpu_count() or 1) + 1

# Sanitizers must stop at the first finding, or a test could pass over it.
SANITIZER_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


@dataclass
class Counts:
    """What a runner's own report says."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: Counts) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclass
class Outcome:
    ok: bool
    counts: Counts = field(default_factory=Counts)


def run(command: list[str | Path], log: Path | None = None, environment: dict[str, str] | None = None) -> bool:
    """Runs a command in the repository; with a log its output goes there instead of the terminal."""
    variables = {**os.environ, **(environment or {})}
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("w")) if log else None
        process = stack.enter_context(subprocess.Popen(command, cwd=ROOT, env=variables, stdout=output, stderr=output))
        while log:
            try:
                process.wait(timeout=SECONDS_BETWEEN_SIGNS)
                break
            except subprocess.TimeoutExpired:
                show_progress(log)
        return process.wait() == 0


def show_progress(log: Path) -> None:
    """The last thing a command whose output goes to a log has done: it may take minutes."""
    lines = log.read_text(errors="replace").splitlines()
    print(f"  ... {lines[-1].strip()[:100] if lines else 'starting'}", flush=True)


def short(text: str | None, first: int = 20, last: int = 3) -> str:
    """The beginning and the end of what a test printed."""
    lines = (text or "").strip().splitlines()
    if len(lines) > first + last:
        lines = [*lines[:first], "...", *lines[-last:]]
    return "\n".join("    " + line[:200] for line in lines)


def skip_reason(case: ElementTree.Element, skipped: ElementTree.Element) -> str:
    """pytest says it in the report; GoogleTest prints it, after the place."""
    lines = [line for line in (case.findtext("system-out") or "").splitlines() if line.strip()]
    for i, line in enumerate(lines):
        if ": Skipped" in line and i + 1 < len(lines):
            return lines[i + 1].strip()
    return skipped.get("message", "") or "no reason given"


def read_report(report: Path, show_details: bool) -> Counts:
    """Counts a JUnit file, and prints why tests failed or were skipped where the runner has not done so."""
    counts = Counts()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = case.get("name", "?")
        broken = case.find("failure") if case.find("failure") is not None else case.find("error")
        skipped = case.find("skipped")
        if broken is not None:
            counts.failed += 1
            if show_details:
                print(f"  FAILED {name}\n{short(case.findtext('system-out') or broken.get('message'))}")
        elif skipped is not None or case.get("status") in ("notrun", "disabled"):
            counts.skipped += 1
            if show_details:
                print(f"  skipped {name}: {skip_reason(case, skipped) if skipped is not None else 'not run'}")
        else:
            counts.passed += 1
    return counts


def report_counts(report: Path, show_details: bool) -> Counts | None:
    if not report.exists():
        print(f"  no report was written: {report.relative_to(ROOT)}")
        return None
    counts = read_report(report, show_details)
    print(f"  {counts}")
    return counts


def without_address_randomisation() -> list[str]:
    """ThreadSanitizer of gcc 12 cannot place its shadow memory where the kernel randomises more than 28 bits."""
    command = ["setarch", "-R"]
    if shutil.which("setarch") is None:
        return []
    probe = subprocess.run([*command, "true"], check=False, capture_output=True)
    return command if probe.returncode == 0 else []


def native_tests(preset: str, layers: tuple[str, ...] = ()) -> Outcome:
    """Builds a preset and runs its tests; of some layers only, if any are named."""
    prefix = without_address_randomisation() if preset == "tsan" else []
    targets = [f"penstock_{layer}_test" for layer in layers]
    # Discovery runs the test programs while they are built, so the build needs the same environment.
    if not run([*prefix, "scripts/build_native.sh", preset, *targets], environment=SANITIZER_ENVIRONMENT):
        return Outcome(ok=False)
    report = REPORTS / f"{preset}.xml"
    jobs = str(os.cpu_count() or 1)
    command = [*prefix, "ctest", "--preset", preset, "-j", jobs, "--no-tests=error", "--output-junit", str(report)]
    if layers:
        command += ["-R", rf"^({'|'.join(layers)})\."]
    passed = run(command, log=LOGS / f"ctest-{preset}.log", environment=SANITIZER_ENVIRONMENT)
    counts = report_counts(report, show_details=True)
    if not passed:
        print(f"  the whole output is in build/logs/ctest-{preset}.log")
    return Outcome(ok=passed and counts is not None and counts.failed == 0, counts=counts or Counts())


def fuzz_targets() -> Outcome:
    return Outcome(ok=run([sys.executable, "scripts/fuzz.py", "--seconds", str(FUZZ_SECONDS)]))


def install_package(*where: str) -> bool:
    """In .venv, and in the environment of the tool that is named."""
    script, variables = "scripts/install_package.sh", {"PENSTOCK_WARNINGS_AS_ERRORS": "ON"}
    return run([script], environment=variables) and all(run([script, tool], environment=variables) for tool in where)


def python_tests(folders: tuple[str, ...], programs: Path = BIN, processes: int = TEST_PROCESSES) -> Outcome:
    if not install_package():
        return Outcome(ok=False)
    outcome = Outcome(ok=True)
    # A run for each folder: modules of the same name live in them.
    for folder in folders:
        report = REPORTS / f"{folder}.xml"
        command: list[str | Path] = [programs / "pytest", "-q", f"--junitxml={report}"]
        if processes > 1:
            command += ["-n", str(processes), "--dist", "worksteal"]
        passed = run([*command, f"tests/{folder}"], environment={"PENSTOCK_COMMAND": str(BIN / "penstock")})
        counts = report_counts(report, show_details=False)
        outcome.counts.add(counts or Counts())
        outcome.ok = outcome.ok and passed and counts is not None
    return outcome


def tests_inside(tool: str, folders: tuple[str, ...], processes: int) -> Outcome:
    """Those that run in an environment of their own, which `make test` does not make."""
    environment = ROOT / f".venv-{tool}"
    if not (environment / "setup-stamp-all").exists():
        print(f"  skipped: {environment.name} is not set up; `make test-{tool}` does that and runs these tests")
        return Outcome(ok=True, counts=Counts(skipped=1))
    if not install_package(tool):
        return Outcome(ok=False)
    return python_tests(folders, environment / "bin", processes)


def short_proofs() -> Outcome:
    return python_tests(("proof",), processes=1)  # each of them keeps all processors busy


def count_wild_packages() -> int:
    return len(json.loads((ROOT / "tests" / "wild" / "packages.json").read_text()))


def docs_site() -> Outcome:
    """The site is built from the package as it is now: its docstrings, its headers, the command's help."""
    if not install_package():
        return Outcome(ok=False)
    if not run(["scripts/setup.sh", "docs"]):
        print("  skipped: the environment .venv-docs can't be made; the package index is needed for it once")
        return Outcome(ok=True, counts=Counts(skipped=1))
    return Outcome(ok=run([ROOT / ".venv-docs" / "bin" / "python", "scripts/docs/build.py"]))


def arm64_library() -> Outcome:
    if platform.machine() != "x86_64":
        print("  skipped: the cross compiler is one that runs on x86-64")
        return Outcome(ok=True, counts=Counts(skipped=1))
    return Outcome(ok=run(["scripts/build_native.sh", "arm64", "penstock"]))


def wheel() -> Outcome:
    report = REPORTS / "wheel.xml"
    # With the flags of the release build ccache serves both.
    command: list[str | Path] = [sys.executable, "scripts/wheel.py", f"--junitxml={report}"]
    passed = run(command, environment={"PENSTOCK_WARNINGS_AS_ERRORS": "ON"})
    counts = report_counts(report, show_details=False)
    return Outcome(ok=passed and counts is not None, counts=counts or Counts())


def checks() -> Outcome:
    commands: dict[str, list[str | Path]] = {
        "clang-format and ruff format": ["scripts/format.sh", "--check"],
        "ruff check": [BIN / "ruff", "check", "--quiet", "."],
        "mypy --strict": [BIN / "mypy", "--strict", "--no-error-summary", "python/penstock"],
    }
    outcome = Outcome(ok=True)
    for name, command in commands.items():
        passed = run(command)
        print(f"  {name}: {'ok' if passed else 'FAILED'}", flush=True)
        outcome.ok = outcome.ok and passed
    return outcome


STAGES: dict[str, tuple[str, Callable[[], Outcome]]] = {
    "release": ("C++ tests, release build, warnings are errors", lambda: native_tests("release")),
    "arm64": ("the library compiles for arm64, warnings are errors", arm64_library),
    "asan": ("C++ tests, AddressSanitizer and UndefinedBehaviorSanitizer", lambda: native_tests("asan")),
    "tsan": ("C++ tests of the layers with threads, ThreadSanitizer", lambda: native_tests("tsan", THREADED_LAYERS)),
    "fuzz": (f"fuzz targets, {FUZZ_SECONDS} seconds each", fuzz_targets),
    "python": (
        "Python, its simulated device, command line, repository, NVIDIA's headers",
        lambda: python_tests(PYTHON_FOLDERS),
    ),
    "proof": ("kills, power cuts, faults, hostile files, everything at once: the short forms", short_proofs),
    "wild": (f"real checkpoints of {count_wild_packages()} packages, downloaded once", lambda: python_tests(("wild",))),
    "vllm": (
        "vLLM and SGLang with weights that penstock reads, where .venv-vllm is there",
        lambda: tests_inside("vllm", ("vllm", "sglang"), 1),  # a process of vLLM takes gigabytes
    ),
    "deepspeed": (
        "trainings by DeepSpeed that are killed and resumed, where .venv-deepspeed is there",
        lambda: tests_inside("deepspeed", ("deepspeed",), TEST_PROCESSES),
    ),
    "docs": ("the site, its links", docs_site),
    "wheel": ("a wheel and a source distribution, installed and used in a new environment", wheel),
    "lint": ("formatting, lint, types", checks),
}


def run_stage(position: str, name: str) -> tuple[Outcome, float]:
    title, stage = STAGES[name]
    print(f"\n== {position} {name}: {title}", flush=True)
    begin = time.monotonic()
    outcome = stage()
    seconds = time.monotonic() - begin
    print(f"== {name}: {'ok' if outcome.ok else 'FAILED'} in {seconds:.1f} s", flush=True)
    return outcome, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)} (default: all)")
    chosen = parser.parse_args().stages or list(STAGES)
    unknown = [name for name in chosen if name not in STAGES]
    if unknown:
        parser.error(f"there is no stage {', '.join(unknown)}; there are {', '.join(STAGES)}")
    # Whoever runs this in the background has SIGINT ignored, and so would the tests of interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout.reconfigure(line_buffering=True)  # what the runners print must not overtake it
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    total, failed_stages, seconds = Counts(), [], 0.0
    for i, name in enumerate(chosen, start=1):
        outcome, stage_seconds = run_stage(f"[{i}/{len(chosen)}]", name)
        total.add(outcome.counts)
        seconds += stage_seconds
        if not outcome.ok:
            failed_stages.append(name)
    verdict = f"; FAILED stages: {', '.join(failed_stages)}" if failed_stages else ""
    print(f"\n{total} in {seconds / 60:.1f} minutes{verdict}")
    return 1 if failed_stages else 0


if __name__ == "__main__":
    sys.exit(main())
