"""doctor: the same answers as the engine's own load, as Python objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import penstock
import pytest
from penstock import measure

NBYTES = 8 * 2**20
KEYS = (
    "path",
    "landing",
    "backend",
    "reason",
    "bytes",
    "bytes_direct",
    "bytes_buffered",
    "bytes_mapped",
    "bytes_copied",
    "bytes_on_drive",
    "requests",
    "block_size",
    "queue_depth",
    "threads",
    "tensors",
    "tensors_moved",
)


@pytest.fixture
def model(path: Path) -> Path:
    array = np.arange(NBYTES // 4, dtype=np.float32)
    penstock.save({"a": array, "b": array[:100], "c": array[:3].astype(np.int8)}, path, shared="duplicate")
    measure.drop_page_cache(path)
    return path


def loaded(path: Path, **arguments: Any) -> dict[str, Any]:
    stats: dict[str, Any] = {}
    penstock.load(path, framework="numpy", stats=stats, pool=penstock.MemoryPool(), **arguments)
    return stats


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"cache": "direct", "landing": "in_place"},
        {"cache": "buffered"},
        {"backend": "threads", "queue_depth": 4, "block_size": "1MiB"},
        {"dtype": "bfloat16"},
    ],
    ids=str,
)
def test_it_says_what_a_load_with_the_same_arguments_does(model: Path, arguments: dict[str, Any]) -> None:
    pytest.importorskip("ml_dtypes")
    expected = penstock.doctor(model, **arguments).now
    actual = loaded(model, **arguments)
    assert {key: expected[key] for key in KEYS} == {key: actual[key] for key in KEYS}


def test_what_is_resident_is_mapped(model: Path) -> None:
    model.read_bytes()
    diagnosis = penstock.doctor(model)
    assert diagnosis.now.path == "mapped"
    assert diagnosis.files[0].resident_bytes == diagnosis.files[0].span
    assert (diagnosis.cold is None) == diagnosis.files[0].in_memory
    assert loaded(model)["path"] == "mapped"


def test_the_rest_of_the_diagnosis_has_names_too(model: Path) -> None:
    diagnosis = penstock.doctor(model)
    assert diagnosis.tensors == 3
    assert diagnosis.bytes == NBYTES + 403
    assert diagnosis.tensors_misaligned == 0
    assert diagnosis.files[0].format == "safetensors"
    assert diagnosis.machine.memory_available > 0
    assert "<penstock.Diagnosis: " in repr(diagnosis)
    assert diagnosis.now.reason in repr(diagnosis)


def test_advice_says_what_is_wrong_and_what_to_do(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LANDING", "staged")
    (advice,) = (each for each in penstock.doctor(model).advice if each.topic == "landing")
    assert advice.problem.startswith("PENSTOCK_LANDING is set")
    assert advice.remedy.startswith("unset PENSTOCK_LANDING")


def test_bad_input_is_the_usual_error(tmp_path: Path, model: Path) -> None:
    with pytest.raises(penstock.NotFoundError, match="missing"):
        penstock.doctor(tmp_path / "missing")
    with pytest.raises(penstock.ArgumentError, match="cache"):
        penstock.doctor(model, cache="magic")
