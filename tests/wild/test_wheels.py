"""How packages are downloaded: without a network, and with packages that are not what they were."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoints import read_manifest
from wheels import Collection, HashError, Unavailable, Wheel

CHECKPOINT = "small/weights/model.pt"
MOST_BYTES = 400_000_000


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip finds packages in place of an index."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    for name, value in {"CONFIG_FILE": "/dev/null", "NO_INDEX": "1", "FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return folder


def make_wheel(folder: Path, name: str = "small-1.0-py3-none-any.whl") -> Wheel:
    wheel = folder / name
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(CHECKPOINT, b"weights")
        archive.writestr("small/__init__.py", "raise RuntimeError('this was imported')")
        archive.writestr("small-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
        archive.writestr("small-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("small-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return Wheel("small", "1.0", name, digest, wheel.stat().st_size, (CHECKPOINT,))


@pytest.mark.parametrize(
    "name",
    [
        "small-1.0-py3-none-any.whl",
        "small-1.0-cp39-cp39-macosx_11_0_arm64.whl",
        "small-1.0-cp313-abi3-win32.whl",
        "small-1.0-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    ],
)
def test_members_are_kept_and_nothing_else(name: str, shelf: Path, tmp_path: Path) -> None:
    package = make_wheel(shelf, name)
    collection = Collection(tmp_path / "cache")
    folder = collection.get(package)
    assert (folder / CHECKPOINT).read_bytes() == b"weights"
    kept = [path for path in (tmp_path / "cache").rglob("[!.]*") if path.is_file()]
    assert kept == [folder / CHECKPOINT]


def test_what_is_in_the_cache_is_not_downloaded_again(shelf: Path, tmp_path: Path) -> None:
    package = make_wheel(shelf)
    folder = Collection(tmp_path / "cache").get(package)
    (shelf / package.wheel).unlink()
    assert Collection(tmp_path / "cache").get(package) == folder


def test_a_package_that_is_not_the_pinned_one_is_an_error(shelf: Path, tmp_path: Path) -> None:
    package = replace(make_wheel(shelf), sha256="0" * 64)
    with pytest.raises(HashError, match=r"small==1\.0 is not what was pinned"):
        Collection(tmp_path / "cache").get(package)


def test_a_package_that_nobody_has_is_unavailable(shelf: Path, tmp_path: Path) -> None:
    package = make_wheel(shelf)
    (shelf / package.wheel).unlink()
    with pytest.raises(Unavailable, match=r"small==1\.0 can't be downloaded: .*satisfies the requirement"):
        Collection(tmp_path / "cache").get(package)


def test_without_a_network_one_package_is_tried_and_the_reason_kept(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = make_wheel(shelf)
    (shelf / package.wheel).unlink()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the port where nobody answers
    collection = Collection(tmp_path / "cache")
    with pytest.raises(Unavailable, match="can't be downloaded: connection broken by"):
        collection.get(package)
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: pytest.fail("it was tried again"))
    with pytest.raises(Unavailable, match=r"small==1\.0 can't be downloaded"):
        collection.get(replace(package, name="other"))


def test_the_manifest_is_bounded_and_broad() -> None:
    packages = read_manifest()
    assert len({package.wheel.name for package in packages}) == len(packages) >= 20
    assert sum(package.wheel.nbytes for package in packages) <= MOST_BYTES
    readers = {member.reader for package in packages for member in package.members}
    assert readers == {"torch", "stand-ins", "safetensors", "script"}
