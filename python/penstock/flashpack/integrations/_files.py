"""The files of a saved model: their names, and which of them a save has written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..._replacement import Replacement
from ...errors import ArgumentError, FormatError, NotFoundError

CONFIG_NAME = "config.json"
INDEX_NAME = "model_index.json"


def weights_name(variant: str | None) -> str:
    """The name of a model's file: model.flashpack, or model.fp16.flashpack for the variant fp16."""
    if variant is not None and (not variant or "/" in variant):
        raise ArgumentError(f"variant is a part of a file's name, not {variant!r}")
    return f"model.{variant}.flashpack" if variant else "model.flashpack"


def find_weights(folder: Path, variant: str | None) -> Path:
    """A model's file, which must be there."""
    path = folder / weights_name(variant)
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file") from None
    except ValueError as problem:
        raise FormatError(f"{path}: not JSON: {problem}") from None
    if not isinstance(found, dict):
        raise FormatError(f"{path}: not a JSON object")
    return found


def change_json(path: Path, changes: dict[str, Any]) -> None:
    """Changes keys of a JSON object in a file, in the layout that diffusers writes."""
    found = read_json(path)
    if all(found.get(key) == value for key, value in changes.items()):
        return
    with Replacement(path) as beside:
        text = json.dumps({**found, **changes}, indent=2, sort_keys=True) + "\n"
        Path(beside).write_text(text, encoding="utf-8")


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The directory to save to, made where there is none."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{folder}: is not a directory")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def written_files(folder: Path) -> Iterator[list[str]]:
    """Gives a list that at the end has the files below a folder that are new or were replaced meanwhile."""
    before = _stamps(folder)
    names: list[str] = []
    yield names
    names += sorted(name for name, stamp in _stamps(folder).items() if before.get(name) != stamp)


def _stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            status = path.stat()
            found[path.relative_to(folder).as_posix()] = (status.st_ino, status.st_mtime_ns, status.st_size)
    return found
