"""SGLang's own model, made and filled on the CPU. It generates nothing there: its kernels have no wheel for CPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock
import pytest
import torch
from sglang.srt import distributed
from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.model_loader import loader as loading
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import ServerArgs, prepare_server_args, set_global_server_args_for_scheduler


@pytest.fixture(scope="module")
def arguments(models: Path, tmp_path_factory: pytest.TempPathFactory) -> ServerArgs:
    """Those of a server with one rank, which has its groups."""
    load_plugins()
    line = ["--model-path", str(models / "shards"), "--load-format", "penstock", "--device", "cpu"]
    made = prepare_server_args([*line, "--attention-backend", "torch_native"])
    set_global_server_args_for_scheduler(made)
    meeting = tmp_path_factory.mktemp("ranks") / "meeting"
    distributed.init_distributed_environment(1, 0, f"file://{meeting}", 0, "gloo")
    ranks = dict.fromkeys(("tp_rank", "pp_rank", "attn_tp_rank", "attn_dp_rank", "moe_ep_rank", "moe_tp_rank"), 0)
    get_parallel().override_permanently(**ranks)
    distributed.initialize_model_parallel(backend="gloo")
    return made


def model_of(arguments: ServerArgs, load_format: str) -> Any:
    described = ModelConfig.from_server_args(arguments)
    loader = loading.get_model_loader(LoadConfig(load_format=load_format), described)
    return loader.load_model(model_config=described, device_config=DeviceConfig("cpu"))


def test_parameters_are_those_of_auto(arguments: ServerArgs, capfd: pytest.CaptureFixture[str]) -> None:
    expected = dict(model_of(arguments, "auto").named_parameters())
    assert "with penstock" not in capfd.readouterr().err
    found = dict(model_of(arguments, "penstock").named_parameters())
    assert "Loading weights with penstock: 100%" in capfd.readouterr().err
    assert found.keys() == expected.keys()
    assert len(found) > 10
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_damaged_file_ends_the_load(arguments: ServerArgs, models: Path) -> None:
    shard = sorted((models / "shards").glob("model-*.safetensors"))[1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-8])
    try:
        with pytest.raises(penstock.FormatError) as caught:
            model_of(arguments, "penstock")
    finally:
        shard.write_bytes(whole)
    assert str(caught.value).startswith(f"{shard}: ")
