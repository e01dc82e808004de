"""The package's description: README.md without pictures and links that only work inside the repository."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

spec = importlib.util.spec_from_file_location("pypi_readme", ROOT / "scripts" / "pypi_readme.py")
assert spec is not None
assert spec.loader is not None
pypi_readme = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pypi_readme)


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("See [tuning](docs/tuning.md#paths), then go.", "See tuning, then go."),
        ("[list](https://example.org/x), [below](#cli)", "[list](https://example.org/x), [below](#cli)"),
        ("A ![chart](docs/images/race.svg) here", "A  here"),
        ("![badge](https://example.org/badge.svg)", "![badge](https://example.org/badge.svg)"),
        ('a\n\n<picture>\n  <source srcset="docs/a.svg">\n  <img src="docs/b.svg">\n</picture>\n\nb', "a\n\nb"),
        ('<img alt="x" src="docs/b.svg" width="720">', ""),
        ("<!-- not run -->\ntext", "text"),
    ],
)
def test_what_leads_into_the_repository_is_left_out(markdown: str, expected: str) -> None:
    assert pypi_readme.without_relative_targets(markdown) == expected


def test_code_blocks_stay_as_they_are() -> None:
    block = "```python\nvalues[0](docs/x.md)  # [a](b)\n```"
    assert block in pypi_readme.description(f"# x\n\n[a](b)\n\n{block}\n\nend [c](d)\n")


def test_the_text_of_the_readme_is_there() -> None:
    text = pypi_readme.description((ROOT / "README.md").read_text())
    assert text.startswith("# penstock\n")
    assert "](docs/" not in text
    assert "docs/images" not in text
