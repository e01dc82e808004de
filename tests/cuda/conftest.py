"""Tests with NVIDIA's own headers and libraries, for CUDA 12 and 13; none of them needs a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import vendor
from wheels import Collection, Unavailable


@pytest.fixture(scope="session")
def collection() -> Collection:
    return Collection()


@pytest.fixture(scope="session", params=["12", "13"], ids=lambda version: f"cuda{version}")
def toolkit(request: pytest.FixtureRequest, collection: Collection) -> vendor.Files:
    """Headers and libraries of one release; skips where they can't be downloaded."""
    try:
        return vendor.get(vendor.read_manifest()[request.param], collection)
    except Unavailable as reason:
        pytest.skip(str(reason))
