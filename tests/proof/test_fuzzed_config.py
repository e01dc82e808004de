"""Any bytes, and any JSON, as the configuration of penstock.fastsafetensors: it is read, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from penstock import Error
from penstock.fastsafetensors import LoaderConfig

NAMES = ["loader", "framework", "queue_size", "max_concurrent_producers", "max_batch_bytes", "_extensions", "parallel",
         "debug", "base", "3fs", "use_pipeline", "queue_sise"]  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner),
    max_leaves=12,
)
MANY = settings(
    max_examples=1000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


def check(path: Path) -> None:
    try:
        config = LoaderConfig.from_file(str(path))
    except Error as error:
        refusal = str(error)
        assert "\n" not in refusal
        return
    assert config.max_concurrent_producers == 1
    assert isinstance(config.get_extension_config("base"), dict)
    assert isinstance(config.create_parallel_kwargs(), dict)


@MANY
@given(data=st.binary(max_size=60))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(data)
    check(path)


@MANY
@given(value=VALUES)
def test_any_json(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "some.json"
    path.write_text(json.dumps(value))
    check(path)


def test_nesting_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(Error, match="is not valid JSON"):
        LoaderConfig.from_file(str(path))
