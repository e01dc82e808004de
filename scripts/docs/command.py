"""The command as a Markdown page: what `penstock man --format markdown` prints, under the page's own title."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path


def render(command: Path) -> str:
    """All of it, asked of the program itself."""
    asked = [command, "man", "--format", "markdown"]
    return with_lower_headings(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)


def with_lower_headings(text: str) -> str:
    """Every heading one level down; what looks like one in a block of code is left alone."""
    parts = re.split(r"^(```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [re.sub(r"^#", "##", part, flags=re.MULTILINE) for part in parts[::2]]
    return "".join(parts)
