"""The code blocks of a page, and a program that runs them.

    python page_blocks.py PAGE

Python and shell blocks run in the order they stand in, in the current directory: the Python ones share a namespace, the
shell ones have `set -e`. A block after the comment `<!-- not run -->` is left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

NOT_RUN = "<!-- not run -->"
RUN_LANGUAGES = {"python", "sh", "cpp"}


@dataclass(frozen=True)
class Block:
    language: str
    line: int
    code: str
    run: bool


def code_blocks(text: str) -> list[Block]:
    """Every block that names a language."""
    blocks = []
    for fence in re.finditer(r"^```(\w+)[^\n]*\n(.*?)^```\s*$", text, re.MULTILINE | re.DOTALL):
        before = text[: fence.start()].rstrip()
        blocks.append(Block(fence[1], text.count("\n", 0, fence.start()) + 1, fence[2], not before.endswith(NOT_RUN)))
    return blocks


def blocks_that_run(page: Path) -> list[Block]:
    """Those that a reader could type in."""
    return [
        block
        for block in code_blocks(page.read_text(encoding="utf-8"))
        if block.run and block.language in RUN_LANGUAGES
    ]


def main(page: Path) -> None:
    warnings.simplefilter("error", RuntimeWarning)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_that_run(page):
        if block.language == "python":
            # Compiled at its own line of the page, which is then what a failure points at.
            exec(compile("\n" * block.line + block.code, str(page), "exec"), names)
        elif block.language == "sh":
            print(f"-- {page.name} line {block.line} (sh)", flush=True)
            subprocess.run(["bash", "-c", "set -e\n" + block.code], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
