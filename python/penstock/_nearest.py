"""The names that somebody may have meant."""

from __future__ import annotations

from collections.abc import Sequence

_MOST = 3
_WILDCARDS = "*?["


def has_wildcards(text: str) -> bool:
    """Whether it is a glob rather than a name."""
    return any(character in text for character in _WILDCARDS)


def suggest(wanted: str, names: Sequence[str]) -> str:
    """The rest of a message about a name or glob that is not there: "; the nearest are 'a', 'b'"."""
    if not names:
        return "; there are no tensors"
    near = nearest(wanted, names)
    if near:
        return f"; the nearest {'is' if len(near) == 1 else 'are'} {_quoted(near)}"
    more = len(names) - _MOST
    return f"; there are {_quoted(names[:_MOST])}{f' and {more} more' if more > 0 else ''}"


def nearest(wanted: str, names: Sequence[str]) -> list[str]:
    """Names that contain what is wanted, else those that are spelled most alike."""
    from difflib import get_close_matches  # only for a message
    from fnmatch import fnmatchcase

    if has_wildcards(wanted):
        found = [name for name in names if fnmatchcase(name, f"*{wanted}*")]
        plain = "".join(character for character in wanted if character not in _WILDCARDS)
    else:
        found = [name for name in names if wanted and wanted in name]
        plain = wanted
    if found:
        return found[:_MOST]
    by_letters = {name.lower(): name for name in names}
    return [by_letters[letters] for letters in get_close_matches(plain.lower(), by_letters, _MOST)]


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)
