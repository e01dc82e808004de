"""The bill of materials (scripts/sbom.py) has all that a wheel has: every library, and every text of licenses/."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import penstock._core
import pytest

pytest.importorskip("cyclonedx", reason="cyclonedx-python-lib is not installed")

ROOT = Path(__file__).resolve().parents[2]
# What every Linux has, and no wheel.
OF_THE_SYSTEM = {
    "libc",
    "libm",
    "libgcc_s",
    "libstdc++",
    "libpthread",
    "libdl",
    "librt",
    "ld-linux-x86-64",
    "ld-linux-aarch64",
}
BUNDLED = {"libfmt": "fmt", "libsimdjson": "simdjson", "liburing": "liburing", "libisal": "isa-l"}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if shutil.which("dpkg-query") is None:
        pytest.skip("not a Debian system, which knows the versions of its libraries")
    path = tmp_path_factory.mktemp("sbom") / "penstock.cdx.json"
    subprocess.run([sys.executable, ROOT / "scripts" / "sbom.py", "--output", path], check=True, capture_output=True)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_it_is_of_this_version_of_penstock(document: dict[str, Any]) -> None:
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    whole = document["metadata"]["component"]
    assert (whole["name"], whole["version"]) == ("penstock", penstock.__version__)


def test_every_licence_is_there_with_its_text_and_a_version(document: dict[str, Any]) -> None:
    texts = {path.stem: path.read_text() for path in (ROOT / "licenses").glob("*.txt")}
    found = {part["name"]: part for part in document["components"]}
    assert sorted(found) == sorted(texts)
    for name, part in found.items():
        assert re.fullmatch(r"\d+(\.\d+)+", part["version"]), name
        [licence] = part["licenses"]
        assert licence["license"]["text"]["content"] == texts[name]
        assert licence["license"]["id"] in ("Apache-2.0", "BSD-3-Clause", "MIT")
    [depends] = [each for each in document["dependencies"] if each["ref"].startswith("penstock@")]
    assert len(depends["dependsOn"]) == len(texts)


def test_every_library_that_the_extension_needs_is_there(document: dict[str, Any]) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("readelf (binutils) is not there")
    dynamic = subprocess.run(
        ["readelf", "-W", "-d", penstock._core.__file__], check=True, capture_output=True, text=True
    )
    needed = {name.partition(".so")[0].partition("-")[0] for name in re.findall(r"NEEDED.*\[(.*)\]", dynamic.stdout)}
    names = {part["name"] for part in document["components"]}
    assert {
        BUNDLED.get(each, each) for each in needed if each not in OF_THE_SYSTEM and not each.startswith("ld")
    } <= names
