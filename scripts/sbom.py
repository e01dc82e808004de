"""What a wheel of penstock is made of: names, versions and licences, as CycloneDX in dist/penstock-VERSION.cdx.json.

Versions are those that were built with: Debian's package manager and the Python environment know them. Licences are the
texts in licenses/, which every wheel has too.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import AttachedText
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"


class Part(NamedTuple):
    """A library in the wheel. name: of its text in licenses/."""

    name: str
    licence: str  # as SPDX calls it
    purl: str  # without the version
    version: Callable[[], str]
    library: str | None = None  # the file that the wheel bundles; None: it is compiled in


def of_debian(package: str) -> Callable[[], str]:
    """The upstream's version of an installed package: 9.1.0 of 9.1.0+ds1-2."""

    def ask() -> str:
        command = ["dpkg-query", "-W", "-f=${source:Upstream-Version}", package]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.partition("+")[0]

    return ask


def of_robin_map() -> str:
    """nanobind has a copy of it."""
    spec = find_spec("nanobind")
    assert spec is not None
    assert spec.origin is not None
    header = Path(spec.origin).parent / "ext" / "robin_map" / "include" / "tsl" / "robin_growth_policy.h"
    return ".".join(re.findall(r"#define TSL_RH_VERSION_\w+ (\d+)", header.read_text()))


PARTS = [
    Part("CLI11", "BSD-3-Clause", "pkg:github/CLIUtils/CLI11", of_debian("libcli11-dev")),
    Part("fmt", "MIT", "pkg:github/fmtlib/fmt", of_debian("libfmt-dev"), "libfmt"),
    Part("isa-l", "BSD-3-Clause", "pkg:github/intel/isa-l", of_debian("libisal-dev"), "libisal"),
    Part("liburing", "MIT", "pkg:github/axboe/liburing", of_debian("liburing-dev"), "liburing"),
    Part("nanobind", "BSD-3-Clause", "pkg:pypi/nanobind", lambda: version("nanobind")),
    Part("robin-map", "MIT", "pkg:github/Tessil/robin-map", of_robin_map),
    Part("simdjson", "Apache-2.0", "pkg:github/simdjson/simdjson", of_debian("libsimdjson-dev"), "libsimdjson"),
]


def our_version() -> str:
    found = re.search(r"project\(penstock VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert found is not None
    return found[1]


def component(name: str, licence: str, purl: str, number: str, text: Path, kind: ComponentType) -> Component:
    known = LicenseFactory().make_with_id(licence, text=AttachedText(content=text.read_text()))
    return Component(
        name=name,
        version=number,
        type=kind,
        scope=None if kind is ComponentType.APPLICATION else ComponentScope.REQUIRED,
        licenses=[known],
        purl=PackageURL.from_string(f"{purl}@{number}"),
        bom_ref=f"{name}@{number}",
    )


def make() -> Bom:
    bom = Bom()
    whole = ROOT / "LICENSE"
    ours = component("penstock", "Apache-2.0", "pkg:pypi/penstock", our_version(), whole, ComponentType.APPLICATION)
    bom.metadata.component = ours
    parts = []
    for part in PARTS:
        text = ROOT / "licenses" / f"{part.name}.txt"
        parts.append(component(part.name, part.licence, part.purl, part.version(), text, ComponentType.LIBRARY))
    bom.components.update(parts)
    bom.register_dependency(ours, parts)
    return bom


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=DIST / f"penstock-{our_version()}.cdx.json")
    output = parser.parse_args().output
    bom = make()
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n")
    for part in sorted(bom.components):
        print(f"[sbom] {part.name} {part.version}: {', '.join(str(each.id) for each in part.licenses)}")  # type: ignore[union-attr]
    print(f"[sbom] {output.relative_to(ROOT) if output.is_relative_to(ROOT) else output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
