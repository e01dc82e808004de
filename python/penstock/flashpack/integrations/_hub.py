"""Between a local directory and the Hugging Face hub, by the public functions of huggingface_hub."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...errors import ArgumentError, NotFoundError
from ._libraries import public_name

_CARD_NAME = "README.md"


def fetch(
    source: str | os.PathLike[str],
    patterns: Iterable[str],
    subfolder: str | None,
    arguments: Mapping[str, Any],
    *,
    ignore: list[str] | None = None,
) -> Path:
    """The local directory of a model: the source itself, or what is downloaded of a repository of that name.

    patterns, ignore: what to download, and what of that not, relative to the subfolder.
    arguments: revision, cache_dir, token and so on.
    """
    inside = checked_subfolder(subfolder)
    if os.path.isdir(source):
        folder = Path(source, inside)
        if not folder.is_dir():
            raise NotFoundError(f"{os.fspath(source)}: has no subfolder {subfolder!r}")
        return folder
    if not isinstance(source, str) or not looks_like_repository(source):
        raise NotFoundError(f"{os.fspath(source)}: no such directory, and not the name of a repository")
    wanted = [f"{inside}/{pattern}" if inside else pattern for pattern in patterns]
    folder = download(source, wanted, ignore, arguments) / inside
    if not folder.is_dir():
        raise NotFoundError(f"{source}: the repository has none of {', '.join(wanted)}")
    return folder


def checked_subfolder(subfolder: str | None) -> str:
    """A subfolder as a relative path that stays inside."""
    parts = Path(subfolder or "").parts
    if Path(subfolder or "").is_absolute() or ".." in parts:
        raise ArgumentError(f"subfolder is a path inside the directory or repository, not {subfolder!r}")
    return "/".join(parts)


def looks_like_repository(source: str) -> bool:
    """Whether a text can name a repository: "name" or "owner/name"."""
    parts = source.split("/")
    return len(parts) <= 2 and all(part and part not in {".", ".."} for part in parts)


def download(repo_id: str, patterns: list[str], ignore: list[str] | None, arguments: Mapping[str, Any]) -> Path:
    """Downloads what matches the patterns, but for what is to be ignored. Returns the directory of the snapshot."""
    snapshot_download = public_name("huggingface_hub", "snapshot_download")
    given = {name: value for name, value in arguments.items() if value is not None}
    unknown = sorted(given.keys() - inspect.signature(snapshot_download).parameters.keys())
    if unknown:
        version = public_name("huggingface_hub", "__version__")
        raise ArgumentError(f"huggingface_hub {version} takes no {unknown[0]}= (proxies are set in the environment)")
    return Path(snapshot_download(repo_id, allow_patterns=patterns, ignore_patterns=ignore, **given))


def upload(
    folder: Path,
    files: Iterable[str],
    *,
    library: str,
    repo_id: str | None = None,
    private: bool | None = None,
    token: str | bool | None = None,
    create_pr: bool = False,
    commit_message: str | None = None,
) -> str:
    """Uploads files of a folder, these and no others, and creates the repository where there is none.

    A repository without a model card gets the folder's, or a new one. Returns the full name of the repository.
    """
    api = public_name("huggingface_hub", "HfApi")(token=token)
    created = api.create_repo(repo_id or folder.resolve().name, private=private, exist_ok=True)
    uploaded = [escaped(name) for name in files]
    if not api.file_exists(created.repo_id, _CARD_NAME):
        if not (folder / _CARD_NAME).exists():
            (folder / _CARD_NAME).write_text(model_card(library), encoding="utf-8")
        uploaded.append(_CARD_NAME)
    api.upload_folder(
        repo_id=created.repo_id,
        folder_path=folder,
        allow_patterns=uploaded,
        create_pr=create_pr,
        commit_message=commit_message or "Upload FlashPack weights",
    )
    return str(created.repo_id)


def escaped(name: str) -> str:
    """A pattern that matches this name only."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def model_card(library: str) -> str:
    """A card that says which library the model is for, and that its weights are FlashPack's."""
    data = public_name("huggingface_hub", "ModelCardData")(library_name=library, tags=["flashpack"])
    return f"---\n{data.to_yaml()}\n---\n\nWeights in the FlashPack format.\n"
