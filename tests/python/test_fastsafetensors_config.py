"""LoaderConfig and load_config: the environment, ./fastsafetensors.json, the defaults, and keys that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from penstock.fastsafetensors import LoaderConfig, load_config


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FASTSAFETENSORS_CONFIG", raising=False)
    return tmp_path


def write(path: Path, **content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def test_defaults_are_those_of_fastsafetensors() -> None:
    config = load_config()
    assert config == LoaderConfig()
    assert (config.loader, config.framework, config.queue_size, config.use_pipeline) == ("base", "pytorch", 0, False)
    assert (config.set_numa, config.disable_cache, config.use_tqdm_on_load) == (True, True, True)
    assert (config.max_batch_bytes, config.device_memory_budget) == (None, None)


def test_the_file_of_the_folder_is_found_and_the_environment_goes_before_it(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(empty_folder / "fastsafetensors.json", queue_size=1)
    assert load_config().queue_size == 1
    monkeypatch.setenv("FASTSAFETENSORS_CONFIG", write(empty_folder / "other.json", queue_size=2))
    assert load_config().queue_size == 2


def test_a_file_that_the_environment_names_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTSAFETENSORS_CONFIG", "absent.json")
    with pytest.raises(FileNotFoundError, match=r"FASTSAFETENSORS_CONFIG.*absent\.json"):
        load_config()


def test_groups_are_flattened_and_other_sections_are_for_loaders() -> None:
    config = LoaderConfig.from_dict(
        {
            "parallel": {"use_pipeline": True, "queue_size": 4},
            "debug": {"debug_log": True},
            "base": {"copier_type": "nogds", "framework": "numpy"},
        }
    )
    assert (config.use_pipeline, config.queue_size, config.debug_log) == (True, 4, True)
    assert config.get_extension_config("base") == {"copier_type": "nogds"}
    assert config.get_extension_config("3fs") == {}


def test_keys_that_are_none_are_named_with_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    assert LoaderConfig.from_dict({"queue_sise": 3}) == LoaderConfig()
    assert "'queue_sise'" in caplog.text
    assert "queue_size" in caplog.text


def test_arguments_of_the_pipeline_follow_use_pipeline() -> None:
    limits = {"max_batch_bytes": 5, "use_chunk_budget_as_allocation_size": False, "device_memory_budget": None}
    assert LoaderConfig(queue_size=3, max_batch_bytes=5).create_parallel_kwargs() == {"queue_size": -1, **limits}
    pipelined = LoaderConfig(use_pipeline=True, queue_size=3, max_batch_bytes=5).create_parallel_kwargs()
    assert pipelined == {"max_concurrent_producers": 1, "queue_size": 3, "use_tqdm_on_load": True, **limits}


@pytest.mark.parametrize(("text", "said"), [("{", "is not valid JSON"), ("[]", "holds a list")])
def test_a_file_that_is_no_configuration_is_refused_by_name(empty_folder: Path, text: str, said: str) -> None:
    (empty_folder / "bad.json").write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.json: {said}"):
        LoaderConfig.from_file(str(empty_folder / "bad.json"))


def test_several_producers_are_refused() -> None:
    with pytest.raises(ValueError, match="max_concurrent_producers must be 1"):
        LoaderConfig(max_concurrent_producers=2)
