"""Paths: what callers write, turned into what the engine takes, and what to type where it is no path."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Union

from . import _core
from .errors import ArgumentError, NotFoundError

Path = Union[str, os.PathLike[str]]
Paths = Union[Path, Iterable[Path]]

# How to bring what is behind a URL to a local path, and the other way round.
_COPYING_HERE = {
    "s3": "aws s3 cp {url} .",
    "gs": "gcloud storage cp {url} .",
    "http": "curl -LO {url}",
    "https": "curl -LO {url}",
    "hf": "huggingface_hub.snapshot_download({repository!r})",
}
_COPYING_THERE = {
    "s3": "aws s3 cp FILE {url}",
    "gs": "gcloud storage cp FILE {url}",
    "hf": "hf upload {repository} FILE",
}


def path_text(path: Path) -> str:
    """A path as the engine takes it."""
    return _checked(path, _how_to_get)


def target_text(path: Path) -> str:
    """A path to save to, as the engine takes it."""
    return _checked(path, _how_to_put)


def _checked(path: Path, how: Callable[[str, str], str]) -> str:
    _refuse_open_file(path)
    text = os.fsdecode(path)
    try:
        valid = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        valid = False
    if not valid:
        raise ArgumentError(f"{text!r} can't be the name of a file")
    _refuse_url(text, how)
    return text


def path_texts(paths: Paths) -> list[str]:
    """One path or several, as a list."""
    _refuse_open_file(paths)
    if isinstance(paths, Iterable) and not isinstance(paths, (str, bytes, os.PathLike)):
        return [path_text(path) for path in paths]
    return [path_text(paths)]


@contextmanager
def explaining(paths: Sequence[str]) -> Iterator[None]:
    """A path that does not exist may be the name of a model elsewhere."""
    try:
        yield
    except NotFoundError as problem:
        name = next((path for path in paths if _looks_like_hub_name(path)), None)
        if name is None:
            raise
        problem.args = (
            f"{problem}; only local paths are read: for a model of the Hugging Face hub, "
            f"huggingface_hub.snapshot_download({name!r}) gives one",
        )
        raise


def _looks_like_hub_name(text: str) -> bool:
    """ "owner/model", whose folder does not exist either, or a "model" without a suffix."""
    if os.path.lexists(text):
        return False
    owner, slash, model = text.partition("/")
    if not slash:
        return text[:1] not in ("", "~") and "." not in text
    if not owner or not model or "/" in model or owner[0] in ".~":
        return False
    return not os.path.lexists(owner) and _core.format_for_suffix(text) is None and not model.endswith(".json")


def _refuse_open_file(value: Any) -> None:
    if isinstance(value, (str, bytes, os.PathLike)) or not (hasattr(value, "read") or hasattr(value, "write")):
        return
    name = getattr(value, "name", None)
    if isinstance(name, (str, bytes)):
        raise ArgumentError(
            f"expected a path, not an open file: penstock opens files itself; give {os.fsdecode(name)!r}"
        )
    raise ArgumentError(
        f"expected a path, not a {type(value).__name__}: penstock opens files itself; for bytes in memory there are "
        "penstock.safetensors.torch.load(data) and penstock.safetensors.torch.save(tensors)"
    )


def _refuse_url(text: str, how: Callable[[str, str], str]) -> None:
    """Also one that a pathlib.Path has taken a slash from."""
    scheme, slash, rest = text.partition(":/")
    if not slash or len(scheme) < 2 or not scheme.isalnum() or os.path.lexists(f"{scheme}:"):
        return
    rest = rest.lstrip("/")
    if scheme == "file":
        raise ArgumentError(f"{text}: expected a path, not a URL; give {f'/{rest}'!r}")
    url = f"{scheme}://{rest}"
    raise ArgumentError(f"{url}: only local paths are read and written; {how(scheme, url)}")


def _how_to_get(scheme: str, url: str) -> str:
    command = _COPYING_HERE.get(scheme)
    return "copy it to one first" if command is None else f"to copy it: {_filled(command, url)}"


def _how_to_put(scheme: str, url: str) -> str:
    return f"save to a local path, then {_filled(_COPYING_THERE.get(scheme, 'copy it there'), url)}"


def _filled(command: str, url: str) -> str:
    return command.format(url=url, repository="/".join(url.split("/")[2:4]))
