"""Builds a source distribution and from that a manylinux wheel, tests both (tests/wheel) and puts them in dist/.

The wheel is built for the Python of .venv. Libraries that a system may lack are bundled into it by auditwheel, which
also finds the oldest manylinux that the rest allows. Needs the network once, for what the tests install.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
DIST = ROOT / "dist"
WORK = ROOT / "build" / "wheel"
LOGS = ROOT / "build" / "logs"


def fail(message: str) -> None:
    print(f"[wheel] FAILED: {message}", file=sys.stderr)
    sys.exit(1)


def run(step: str, command: list[str | Path], environment: dict[str, str] | None = None) -> None:
    """Runs a step with its output in a log; shows the end of that if it fails."""
    print(f"[wheel] {step}", flush=True)
    log = LOGS / f"wheel-{step.split()[0]}.log"
    variables = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **(environment or {})}
    with log.open("w") as output:
        done = subprocess.run(command, check=False, cwd=ROOT, env=variables, stdout=output, stderr=output)
    if done.returncode != 0:
        print("\n".join(log.read_text(errors="replace").splitlines()[-30:]), file=sys.stderr)
        fail(f"{step}; the whole output is in {log.relative_to(ROOT)}")


def only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        fail(f"one {pattern} was expected in {folder.relative_to(ROOT)}, there are {len(found)}")
    return found[0]


def build_sdist() -> Path:
    run("sdist", [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", WORK, ROOT])
    return only(WORK, "penstock-*.tar.gz")


def unpack(sdist: Path) -> Path:
    shutil.unpack_archive(sdist, WORK)
    return WORK / sdist.name.removesuffix(".tar.gz")


def build_wheel(source: Path) -> Path:
    """A wheel for this machine alone, from the unpacked source distribution."""
    environment = {"CXX": os.environ.get("CXX", "c++")}
    if shutil.which("ccache"):
        # As scripts/progress.sh says: then objects of the other builds are found again.
        environment |= {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache", "CCACHE_BASEDIR": str(source), "CCACHE_NOHASHDIR": "1"}
        environment |= {"CCACHE_SLOPPINESS": "pch_defines,time_macros"}
    settings = [f"-Ccmake.define.PENSTOCK_WARNINGS_AS_ERRORS={os.environ.get('PENSTOCK_WARNINGS_AS_ERRORS', 'OFF')}"]
    built = WORK / "built"
    command: list[str | Path] = [sys.executable, "-m", "build", "--wheel", "--no-isolation", *settings]
    run("compile (some minutes the first time)", [*command, "--outdir", built, source], environment)
    return only(built, "penstock-*.whl")


def bundle_libraries(wheel: Path) -> Path:
    run("auditwheel", [sys.executable, "-m", "auditwheel", "repair", "--strip", "--wheel-dir", WORK, wheel])
    return only(WORK, "penstock-*.whl")


def make_environment(wheel: Path) -> Path:
    """A new environment that holds the wheel and what it depends on, from wheels that are downloaded once."""
    wheelhouse = WORK.parent / f"wheelhouse-{sys.implementation.cache_tag}"
    if not any(wheelhouse.glob("numpy-*.whl")):
        run("numpy for the tests", [sys.executable, "-m", "pip", "download", "-d", wheelhouse, "numpy"])
    environment = WORK / "environment"
    run("environment", [sys.executable, "-m", "venv", environment])
    python = environment / "bin" / "python"
    run("install", [python, "-m", "pip", "install", "--no-index", "--find-links", wheelhouse, wheel])
    return python


def test(sdist: Path, wheel: Path, python: Path, report: str | None) -> bool:
    variables = {"PENSTOCK_SDIST": str(sdist), "PENSTOCK_WHEEL": str(wheel), "PENSTOCK_WHEEL_PYTHON": str(python)}
    command: list[str | Path] = [sys.executable, "-m", "pytest", "-q", "tests/wheel"]
    if report:
        command.append(f"--junitxml={report}")
    return subprocess.run(command, check=False, cwd=ROOT, env={**os.environ, **variables}).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--junitxml", metavar="FILE", help="a report of the tests for machines")
    report = parser.parse_args().junitxml
    shutil.rmtree(WORK, ignore_errors=True)
    for folder in (WORK, LOGS, DIST):
        folder.mkdir(parents=True, exist_ok=True)
    sdist = build_sdist()
    wheel = bundle_libraries(build_wheel(unpack(sdist)))
    if not test(sdist, wheel, make_environment(wheel), report):
        fail("the tests of the wheel")
    # Wheels for other Pythons stay beside it.
    for built in (sdist, wheel):
        shutil.copy2(built, DIST)
        print(f"[wheel] dist/{built.name}, {built.stat().st_size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
