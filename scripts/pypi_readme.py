"""The description that the package carries: README.md without what only works inside the repository.

A package index shows the description alone. Pictures and links whose targets are files of the repository lead nowhere
there: pictures are left out, links keep their text. The build of the package calls `dynamic_metadata` (pyproject.toml).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FENCED_BLOCK = re.compile(r"(^```.*?^```[^\S\n]*$)", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"<picture>.*?</picture>", re.DOTALL)
RELATIVE = r"(?![a-z][a-z0-9+.-]*:|//|#)"
HTML_IMAGE = re.compile(rf'<img\b[^>]*\bsrc="{RELATIVE}[^>]*>')
IMAGE = re.compile(rf"!\[[^\]]*\]\({RELATIVE}[^)]*\)")
LINK = re.compile(rf"\[([^\]]*)\]\({RELATIVE}[^)]*\)")
WHERE_THE_REST_IS = (
    "The source distribution holds the documentation (`docs/`) and the charts that this page leaves out.\n"
)


def without_relative_targets(markdown: str) -> str:
    """Text outside of code blocks, changed as the module says."""
    for pattern in (COMMENT, PICTURE, HTML_IMAGE, IMAGE):
        markdown = pattern.sub("", markdown)
    return re.sub(r"\n{3,}", "\n\n", LINK.sub(r"\1", markdown))


def description(readme: str) -> str:
    parts = FENCED_BLOCK.split(readme)
    # Code blocks are the odd ones.
    parts[::2] = [without_relative_targets(part) for part in parts[::2]]
    return "".join(parts).rstrip() + "\n\n" + WHERE_THE_REST_IS


def dynamic_metadata(_settings: Mapping[str, Any], _project: Mapping[str, Any]) -> dict[str, Any]:
    text = description((ROOT / "README.md").read_text(encoding="utf-8"))
    return {"readme": {"content-type": "text/markdown", "text": text}}
