"""Lists of arguments in docstrings.

A paragraph whose lines are `argument: what it is` (or `a, b: what they are`), with the name of a parameter before the
colon, describes arguments. It becomes a section with a heading.
"""

from __future__ import annotations

import re

ENTRY = re.compile(r"^(\w+(?:, \w+)*): (?=\S)")


def with_sections(text: str, parameters: set[str]) -> str:
    """The text with each paragraph that lists arguments under a heading of its own."""
    paragraphs = re.split(r"\n[ \t]*\n", text)
    return "\n\n".join(as_section(paragraph, parameters) or paragraph for paragraph in paragraphs)


def as_section(paragraph: str, parameters: set[str]) -> str | None:
    """The paragraph as a section; nothing if it lists no arguments. Lines before the first and after the last stay."""
    lines = paragraph.splitlines()
    marked = [i for i, line in enumerate(lines) if is_entry(line, parameters)]
    if not marked:
        return None
    end = next((i for i in range(marked[-1] + 1, len(lines)) if not lines[i].startswith(" ")), len(lines))
    entries = ["    " + line for line in split_names(lines[marked[0] : end])]
    parts = ["\n".join(lines[: marked[0]]), "Args:\n" + "\n".join(entries), "\n".join(lines[end:])]
    return "\n\n".join(part for part in parts if part)


def is_entry(line: str, parameters: set[str]) -> bool:
    found = ENTRY.match(line)
    return found is not None and set(found[1].split(", ")) <= parameters


def split_names(lines: list[str]) -> list[str]:
    """`a, b: text` describes two arguments; what follows an entry on indented lines belongs to it."""
    result: list[str] = []
    for line in lines:
        found = ENTRY.match(line)
        first, *others = found[1].split(", ") if found else [""]
        if found:
            result += [f"{name}: see `{others[-1]}`." for name in [first, *others[:-1]] if others]
            result.append(f"{others[-1] if others else first}: {line[found.end() :]}")
        else:
            result.append(line)
    return result
