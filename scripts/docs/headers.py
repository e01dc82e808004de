"""The public headers as one Markdown page: what each opens with as prose, then its declarations with their comments.

Only what this repository's headers have is understood: line comments, one namespace, declarations separated by empty
lines.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

NAMESPACE = re.compile(
    r"^namespace (?:PENSTOCK_EXPORT )?penstock \{\n(.*)^\}  // namespace penstock$", re.MULTILINE | re.DOTALL
)
NAMED = re.compile(r"^(?:class|struct|enum class)\s+(?P<type>\w+)|^using (?P<alias>\w+)|(?P<function>~?\w+)\(")
CODE_OR_TEXT = re.compile(r"(`[^`]*`)")


class Declaration(NamedTuple):
    name: str
    comment: str
    code: str


def render(headers: list[Path]) -> str:
    """A section for each header, in the order given."""
    return "\n".join(render_header(header.name, header.read_text()) for header in headers)


def render_header(name: str, text: str) -> str:
    """One header: its opening comment, then what it declares."""
    parts = [f"## {name}\n", prose(leading_comment(text))]
    for declaration in declarations(text):
        parts += [f"### `{declaration.name}`\n", prose(declaration.comment), f"```cpp\n{declaration.code}\n```\n"]
    return "\n".join(part for part in parts if part)


def leading_comment(text: str) -> str:
    """The comment that a text opens with, its slashes included."""
    return "\n".join(take_comment(text.splitlines())[0])


def take_comment(lines: list[str]) -> tuple[list[str], list[str]]:
    """The comment lines at the beginning, and the rest."""
    length = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
    return lines[:length], lines[length:]


def declarations(text: str) -> list[Declaration]:
    """What the namespace holds, but for templates: these are for the library and its bindings."""
    inside = NAMESPACE.search(text)
    found = []
    for block in blocks(inside[1]) if inside else []:
        comment, code = take_comment(block)
        if code and not code[0].startswith(("template", "inline")):
            found.append(Declaration(declared_name("\n".join(code)), "\n".join(comment), public_part(code)))
    return found


def blocks(text: str) -> list[list[str]]:
    """Runs of lines; an empty line ends one unless it lies in braces."""
    found: list[list[str]] = [[]]
    depth = 0
    for line in text.splitlines():
        code = line.split("//")[0]
        depth += code.count("{") - code.count("}")
        if line or depth:
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [block for block in found if block]


def declared_name(code: str) -> str:
    """The name of a type, an alias or a function."""
    found = NAMED.search(code)
    if not found:
        raise ValueError(f"scripts/docs/headers.py finds no name in this declaration:\n{code}")
    return found["type"] or found["alias"] or f"{found['function']}()"


def public_part(code: list[str]) -> str:
    """The declaration without its private members and without the library's own."""
    kept = []
    hidden = False
    for line in code:
        hidden = hidden or line.strip() in ("private:", "protected:")
        hidden = hidden and line != "};"
        if not hidden and "// the library's own" not in line:
            kept.append(line)
    return re.sub(r"\n+(?=\};)", "\n", re.sub(r"(public:|\{)\n\n+", r"\1\n", "\n".join(kept)))


def prose(comment: str) -> str:
    """A comment as Markdown: paragraphs; lines that are indented stay as they are, in a block of code."""
    lines = [line.removeprefix("//").removeprefix(" ") for line in comment.splitlines()]
    parts: list[str] = []
    kind = ""
    for line in lines:
        now = "code" if line.startswith("  ") else "text" if line else ""
        if now != kind and "code" in (now, kind):
            parts.append("```" if kind == "code" else "\n```text")
        parts.append(line if now == "code" else escaped(line))
        kind = now
    if kind == "code":
        parts.append("```")
    return "\n".join(parts) + "\n" if parts else ""


def escaped(line: str) -> str:
    """Signs that Markdown would take for its own, outside of code."""
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<\[\]])", r"\\\1", part) for part in CODE_OR_TEXT.split(line)
    )
