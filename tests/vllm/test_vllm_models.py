"""Whole models in vLLM: what they generate, and what is in their parameters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import penstock
import pytest
import vllm_run

PATIENCE_SECONDS = 900
PENSTOCK = {"load_format": "penstock"}


def launch(runs: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, vllm_run.__file__, json.dumps(runs)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


def run(*runs: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """What each of these gives, and the log."""
    done = launch(list(runs))
    log = done.stdout + done.stderr
    assert done.returncode == 0, log[-6000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith(vllm_run.MARK))
    return json.loads(line.removeprefix(vllm_run.MARK)), log


@pytest.fixture(scope="module")
def expected(models: Path) -> dict[str, Any]:
    """What vLLM's own loader makes of the model."""
    (found,), log = run({"model": str(models / "single"), "load_format": "auto"})
    assert "with penstock" not in log
    assert (
        len({token for tokens in found["tokens"] for token in tokens}) > 10
    )  # a model that says one thing proves none
    return found


def test_tokens_and_parameters_are_those_of_auto(models: Path, expected: dict[str, Any]) -> None:
    runs = [{"model": str(models / name), **PENSTOCK} for name in ("single", "shards", "bin", "pt")]
    found, log = run(*runs)
    assert log.count("Loading weights with penstock: 100%") == len(runs)
    for each in found:
        assert each == expected


def test_the_configuration_reaches_penstock_and_the_bar_can_be_left_out(models: Path, expected: dict[str, Any]) -> None:
    config = {"max_buffer": "1MiB", "cache": "direct", "memory_budget": "1GiB", "threads": 1, "verify": "if-any"}
    (found,), log = run(
        {
            "model": str(models / "shards"),
            **PENSTOCK,
            "model_loader_extra_config": {**config, "enable_weights_track": True},
            "use_tqdm_on_load": False,
        }
    )
    assert found == expected
    assert "Loading weights with penstock" not in log


def test_two_tensor_parallel_processes_have_what_auto_gives_them(models: Path, expected: dict[str, Any]) -> None:
    parallel = {
        "model": str(models / "shards"),
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "mp",
    }
    (auto, ours), log = run({**parallel, "load_format": "auto"}, {**parallel, **PENSTOCK})
    assert log.count("Loading weights with penstock: 100%") == 1  # on the first rank
    assert ours == auto
    assert ours["tokens"] == expected["tokens"]
    first, second = ours["parameters"]
    assert first.keys() == second.keys() == expected["parameters"][0].keys()
    assert first != second


def damaged(models: Path, folder: Path) -> tuple[Path, str]:
    """A copy of the sharded model with a seal, and then a wrong bit in the middle of a shard: that, and its tensor."""
    folder.mkdir()
    for path in (models / "shards").iterdir():
        if path.name != "stray.safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    penstock.seal(folder)
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    tensor = penstock.inspect(shard).tensors[0]
    with shard.open("r+b") as file:
        file.seek(tensor.offset + tensor.nbytes // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))
    return shard, tensor.name


@pytest.mark.parametrize("processes", [1, 2])
def test_a_damaged_file_is_named_with_its_tensor(models: Path, tmp_path: Path, processes: int) -> None:
    shard, tensor = damaged(models, tmp_path / "model")
    arguments = {"model": str(shard.parent), **PENSTOCK, "model_loader_extra_config": {"verify": "seal"}}
    if processes > 1:
        arguments |= {"tensor_parallel_size": processes, "distributed_executor_backend": "mp"}
    done = launch([arguments])
    assert done.returncode != 0
    lines = [
        line for line in done.stderr.splitlines() + done.stdout.splitlines() if "penstock.errors.FormatError:" in line
    ]
    assert lines, done.stderr[-4000:]
    assert all(str(shard) in line and tensor in line for line in lines), lines
    assert vllm_run.MARK not in done.stdout


def test_a_truncated_file_is_named(models: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for path in (models / "single").iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    done = launch([{"model": str(model), **PENSTOCK}])
    assert done.returncode != 0
    assert f"penstock.errors.FormatError: {file}: " in done.stderr + done.stdout


def test_a_wrong_configuration_is_one_line(models: Path) -> None:
    wrong = {"max_bufer": "1GiB"}
    done = launch([{"model": str(models / "single"), **PENSTOCK, "model_loader_extra_config": wrong}])
    assert done.returncode != 0
    line = "model_loader_extra_config: there is no 'max_bufer'; the nearest is 'max_buffer'; there are "
    assert f"penstock.errors.ArgumentError: {line}" in done.stderr + done.stdout
